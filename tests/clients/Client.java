// A test in Java (17, nothing but its own HTTP client): LLMPROXY_URL=http://127.0.0.1:8080 java Client.java
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;

public class Client {
    static final String URL = System.getenv("LLMPROXY_URL");
    static final HttpClient HTTP = HttpClient.newHttpClient(); // says Upgrade: h2c in its first request

    static HttpResponse<String> post(String path, String body) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(URL + path))
            .header("content-type", "application/json")
            .header("authorization", "Bearer none")
            .POST(BodyPublishers.ofString(body))
            .build();
        return HTTP.send(request, BodyHandlers.ofString());
    }

    static String session(String name) {
        return "/_llmproxy/sessions/" + URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
    }

    static HttpResponse<String> ask(String session, String question) throws Exception {
        var body = "{\"model\": \"gpt-4o\", \"messages\": [{\"role\": \"user\", \"content\": \"%s\"}]}".formatted(question);
        return post("/s/" + session + "/v1/chat/completions", body);
    }

    static void expect(int status, String text, HttpResponse<String> answer) {
        if (answer.statusCode() != status || !answer.body().contains(text)) {
            throw new AssertionError("expected " + status + " with " + text + ", got " + answer.statusCode() + ": " + answer.body());
        }
    }

    public static void main(String[] args) throws Exception {
        expect(201, "\"hits\": 0", post("/_llmproxy/sessions", "{\"name\": \"weather\", \"exhausted\": \"miss\"}"));
        expect(200, "Rain.", ask("weather", "How is the weather?"));
        expect(200, "Sun.", ask("weather", "How is the weather?"));
        expect(404, "no recorded response", ask("weather", "How is the weather?"));
        expect(200, "\"hits\": 2", post(session("weather") + "/reset", ""));
        expect(200, "weather", post(session("a worker/1") + "/bind", "{\"session\": \"weather\"}"));
        expect(200, "Rain.", ask("a%20worker%2F1", "How is the weather?"));
        expect(200, "\"hits\": 3, \"misses\": 1,", post(session("weather") + "/close", ""));
        expect(404, "llmproxy_session_unknown", post(session("weather") + "/close", ""));
        System.out.println("java: all passed");
    }
}
