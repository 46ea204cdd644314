<?php // Asks a model as a PHP program does: with streams alone where curl is missing, else with curl, four at once too.

function body(string $question, bool $stream): string {
    return json_encode(["model" => "gpt-4o", "stream" => $stream, "messages" => [["role" => "user", "content" => $question]]]);
}

const HEADERS = ["content-type: application/json"];
$url = getenv("OPENAI_BASE_URL") . "/chat/completions";
$headers = [...HEADERS, "authorization: Bearer " . getenv("OPENAI_API_KEY")];

function by_stream(string $question, bool $stream): string {
    global $url, $headers;
    $options = ["method" => "POST", "header" => $headers, "content" => body($question, $stream), "ignore_errors" => true];
    $text = file_get_contents($url, false, stream_context_create(["http" => $options]));
    return "$question " . explode(" ", $http_response_header[0])[1] . " $text\n";
}

function handle(string $question, bool $stream): CurlHandle {
    global $url, $headers;
    $made = curl_init($url);
    curl_setopt_array($made, [CURLOPT_POST => true, CURLOPT_HTTPHEADER => $headers, CURLOPT_RETURNTRANSFER => true]);
    curl_setopt($made, CURLOPT_POSTFIELDS, body($question, $stream));
    return $made;
}

function told(string $question, CurlHandle $made, string $text): string {
    return "$question " . curl_getinfo($made, CURLINFO_RESPONSE_CODE) . " $text\n";
}

echo by_stream("plain", false), by_stream("stream", true);
$kept = handle("first", false);
foreach (["first", "second", "third"] as $question) {
    curl_setopt($kept, CURLOPT_POSTFIELDS, body($question, false));
    echo told($question, $kept, curl_exec($kept));
}
$all = curl_multi_init();
$open = [];
foreach (["east", "north", "south", "west"] as $question) {
    curl_multi_add_handle($all, $open[$question] = handle($question, str_ends_with($question, "st")));
}
do {
    curl_multi_exec($all, $running);
    curl_multi_select($all);
} while ($running);
foreach ($open as $question => $made) {
    echo told($question, $made, curl_multi_getcontent($made));
}
echo by_stream("error", false);
