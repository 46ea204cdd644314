// Asks a model as a Go program does, with net/http alone.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"sync"
)

func ask(question string, stream bool) string {
	body, _ := json.Marshal(map[string]any{
		"model": "gpt-4o", "stream": stream,
		"messages": []any{map[string]string{"role": "user", "content": question}},
	})
	request, _ := http.NewRequest("POST", os.Getenv("OPENAI_BASE_URL")+"/chat/completions", bytes.NewReader(body))
	request.Header.Set("content-type", "application/json")
	request.Header.Set("authorization", "Bearer "+os.Getenv("OPENAI_API_KEY"))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Sprintf("%s failed: %v\n", question, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Sprintf("%s broke off: %v\n", question, err)
	}
	return fmt.Sprintf("%s %d %s\n", question, answer.StatusCode, text)
}

func main() {
	fmt.Print(ask("plain", false), ask("stream", true), ask("first", false), ask("second", false), ask("third", false))
	questions := []string{"north", "east", "south", "west"}
	answers := make([]string, len(questions))
	var all sync.WaitGroup
	for at, question := range questions {
		all.Add(1)
		go func(at int, question string) { // before Go 1.22 a loop has one variable for all its rounds
			defer all.Done()
			answers[at] = ask(question, at%2 == 1)
		}(at, question)
	}
	all.Wait()
	sort.Strings(answers)
	for _, answer := range answers {
		fmt.Print(answer)
	}
	fmt.Print(ask("error", false))
}
