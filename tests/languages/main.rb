# Asks a model as a Ruby program does, with net/http alone.
require "json"
require "net/http"

BASE = URI(ENV.fetch("OPENAI_BASE_URL"))

def ask(question, stream: false, http: nil)
  request = Net::HTTP::Post.new("#{BASE.path}/chat/completions")
  request["content-type"] = "application/json"
  request["authorization"] = "Bearer #{ENV['OPENAI_API_KEY']}"
  request.body = JSON.generate(model: "gpt-4o", stream: stream, messages: [{ role: "user", content: question }])
  text = +""
  answer = (http || Net::HTTP.new(BASE.host, BASE.port)).request(request) { |coming| coming.read_body { |part| text << part } }
  "#{question} #{answer.code} #{text}\n"
end

print ask("plain"), ask("stream", stream: true)
Net::HTTP.start(BASE.host, BASE.port) { |http| print ask("first", http: http), ask("second", http: http), ask("third", http: http) }
print(*%w[north east south west].map { |each| Thread.new { ask(each, stream: each.end_with?("st")) } }.map(&:value).sort)
print ask("error")
