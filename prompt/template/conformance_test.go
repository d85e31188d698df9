package template

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab/golden"
)

// mustJSON reads JSON into a Value.
func mustJSON(t testing.TB, raw []byte) Value {
	t.Helper()
	v, err := FromJSON(string(raw))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func varsOf(v Value) Vars {
	var vars Vars
	for _, e := range v.Dict().Entries() {
		vars.Set(e.Key.Text(), e.Value)
	}
	return vars
}

// The clocks with which the golden results were made.
func fixedClock() time.Time { return time.Date(2025, 7, 10, 9, 5, 3, 0, time.UTC) }
func noon() time.Time       { return time.Date(2025, 7, 10, 12, 0, 0, 0, time.UTC) }

// TestConformanceChatTemplates renders real models' templates over contexts; Jinja2 made the expected texts.
func TestConformanceChatTemplates(t *testing.T) {
	dir := golden.Dir(t, "chat_templates")
	var rec struct {
		Contexts map[string]json.RawMessage
		Expected map[string]map[string]struct {
			OK    *string
			Error *string
		}
	}
	golden.JSON(t, &rec, dir, "cases.json")
	contexts := map[string]Vars{}
	for name, raw := range rec.Contexts {
		contexts[name] = varsOf(mustJSON(t, raw))
	}
	var names []string
	for name := range rec.Expected {
		names = append(names, name)
	}
	sort.Strings(names)
	cases, wrong := 0, 0
	for _, name := range names {
		src, err := os.ReadFile(filepath.Join(dir, "templates", name+".jinja"))
		if err != nil {
			src, err = os.ReadFile(filepath.Join(dir, "templates", name))
		}
		if err != nil {
			t.Fatal(err)
		}
		tmpl, compileErr := Compile(string(src), Options{Now: noon})
		for context, want := range rec.Expected[name] {
			cases++
			var got []byte
			err := compileErr
			if err == nil {
				got, err = tmpl.Render(nil, contexts[context])
			}
			switch {
			case want.OK == nil && err == nil:
				t.Errorf("%s/%s: got %q, want the error %s", name, context, got, *want.Error)
			case want.OK != nil && err != nil:
				t.Errorf("%s/%s: %v", name, context, err)
			case want.OK != nil && string(got) != *want.OK:
				t.Errorf("%s/%s:\n got %q\nwant %q", name, context, got, *want.OK)
			default:
				continue
			}
			wrong++
		}
	}
	t.Logf("%d templates, %d cases, %d wrong", len(names), cases, wrong)
}

// TestConformanceChatHF compares Apply with renderings of the real transformers.
func TestConformanceChatHF(t *testing.T) {
	var rows []struct {
		ID, Template string
		Messages     json.RawMessage
		Kwargs       json.RawMessage
		OK, Err      *string
	}
	golden.JSON(t, &rows, golden.Dir(t, "chat_hf", "cases.json"))
	for _, row := range rows {
		chat := Chat{Messages: aliasReasoning(mustJSON(t, row.Messages))}
		for _, e := range mustJSON(t, row.Kwargs).Dict().Entries() {
			switch v := e.Value; e.Key.Text() {
			case "tools":
				chat.Tools = v
			case "documents":
				chat.Documents = v
			case "add_generation_prompt":
				chat.AddGenerationPrompt = truth(v)
			case "return_assistant_tokens_mask":
				// the mask is for training; the text is the same
			case "continue_final_message":
				chat.ContinueFinal = v.Text()
				if v.Kind() == KindBool && truth(v) {
					chat.ContinueFinal = "content"
				}
			default:
				chat.Vars.Set(e.Key.Text(), v)
			}
		}
		var got []byte
		tmpl, err := Compile(row.Template, Options{Now: fixedClock})
		if err == nil {
			got, err = tmpl.Apply(nil, &chat)
		}
		switch {
		case row.OK == nil && err == nil:
			t.Errorf("%s: got %q, want the error %s", row.ID, got, *row.Err)
		case row.OK != nil && err != nil:
			t.Errorf("%s: %v", row.ID, err)
		case row.OK != nil && string(got) != *row.OK:
			t.Errorf("%s:\n got %q\nwant %q", row.ID, got, *row.OK)
		}
	}
	t.Logf("%d cases", len(rows))
}

// aliasReasoning returns the messages with their reasoning under every name that templates read, as transformers 5.23, which made
// the cases, passes them.
func aliasReasoning(messages Value) Value {
	out := slices.Clone(messages.Items())
	for i, m := range out {
		for _, field := range reasoningFields {
			reasoning, ok := m.Get(field)
			if !ok || reasoning.IsNone() {
				continue
			}
			d := NewDict(m.Dict().Len() + 2)
			d.Set("thinking", reasoning)
			d.update(m.Dict())
			d.Set("reasoning_content", reasoning)
			out[i] = d.Value()
			break
		}
	}
	return NewList(out...)
}
