// Asks a model as a Java program does, with java.net.http alone; it offers HTTP/2 on every plain connection.
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;

public class Main {
    static final HttpClient CLIENT = HttpClient.newHttpClient();

    static CompletableFuture<String> ask(String question, boolean stream) {
        String body = """
            {"model": "gpt-4o", "stream": %s, "messages": [{"role": "user", "content": "%s"}]}""".formatted(stream, question);
        HttpRequest request = HttpRequest.newBuilder(URI.create(System.getenv("OPENAI_BASE_URL") + "/chat/completions"))
            .header("content-type", "application/json")
            .header("authorization", "Bearer " + System.getenv("OPENAI_API_KEY"))
            .POST(HttpRequest.BodyPublishers.ofString(body)).build();
        return CLIENT.sendAsync(request, HttpResponse.BodyHandlers.ofString())
            .thenApply(answer -> question + " " + answer.statusCode() + " " + answer.body() + "\n");
    }

    public static void main(String[] args) {
        System.out.print(ask("plain", false).join() + ask("stream", true).join());
        System.out.print(ask("first", false).join() + ask("second", false).join() + ask("third", false).join());
        var open = Stream.of("north", "east", "south", "west").map(each -> ask(each, each.endsWith("st"))).toList();
        open.stream().map(CompletableFuture::join).sorted().forEach(System.out::print);
        System.out.print(ask("error", false).join());
    }
}
