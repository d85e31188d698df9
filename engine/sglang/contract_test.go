package sglang

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/prompt"
)

// chatFacts are what contract/contract.py asked of one release.
type chatFacts struct {
	SGLang          string
	Templates, Keys []string
	Requests        []struct {
		Request string
		Texts   []*string // by template; nil: refused
		Odd     bool      // a key has a value that it should not have: it may be unpredicted
	}
}

// contract reads the facts in testdata, or those that make contract-sglang has made anew.
func contract(t *testing.T) (f chatFacts) {
	file := "testdata/contract/0.5.23.json.gz"
	if made := os.Getenv("SIGHTLINE_CONTRACT"); made != "" {
		file = made
	}
	golden.JSON(t, &f, file)
	return f
}

// TestContractChats: what the release's request types and its serving code give its templates. A chat that it refuses may be read here.
func TestContractChats(t *testing.T) {
	f, read, failed := contract(t), 0, 0
	for i, text := range f.Templates {
		file := filepath.Join(t.TempDir(), "t.jinja")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := prompt.Load("../../examples/models/qwen2.5-vl", prompt.Options{Dialect: Dialect(), TemplateFile: file})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range f.Requests {
			if c.Texts[i] == nil {
				continue
			}
			read++
			var s body.Skeleton
			var req body.Request
			if err := body.Read([][]byte{[]byte(c.Request)}, &s, &req); err != nil {
				t.Fatal(err)
			}
			d, err := m.Read(t.Context(), denied.Chat, &req)
			if _, unread := errors.AsType[*prompt.Unpredicted](err); unread && c.Odd {
				continue
			}
			switch {
			case err != nil:
				t.Errorf("%s: got %v, want %q", c.Request, err, *c.Texts[i])
			case d.Prompts[0].Text != *c.Texts[i]:
				t.Errorf("%s, %s:\n got %q\nwant %q", c.Request, text, d.Prompts[0].Text, *c.Texts[i])
			default:
				continue
			}
			failed++
			if failed > 40 {
				t.Fatal("got 40 other texts, and more")
			}
		}
	}
	if read < 60 {
		t.Errorf("got %d chats that the release renders, want at least 60", read)
	}
}

// nestedUnread are keys of messages, parts, calls and tools that change no prompt: a function's own note of its keys' order; what shapes
// videos, which are not read; the options of an image, which then has no name (imageOf); and what LLaVA's processor alone reads of a part,
// whose images have none.
const nestedUnread = "key_order fps max_frames max_image_tokens max_tokens_per_frame max_long_side_pixel modalities"

// TestContractKeys: each key that the release's types have below messages and tools is read, removed, or known to change no prompt.
func TestContractKeys(t *testing.T) {
	code := golden.Source(t, ".", "../../prompt", "../../body")
	unread := strings.Fields(nestedUnread)
	for _, key := range contract(t).Keys {
		read := strings.Contains(code, strconv.Quote(key)) || denied.InMedia.Field(key) != nil
		if read == slices.Contains(unread, key) {
			t.Errorf("%s is read (%v) or in nestedUnread, want one of both", key, read)
		}
	}
}
