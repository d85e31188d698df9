package hub

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// TestFetch uses a hub on loopback: /api/models/o/m lists what a case says, small files come from it, the tokenizer from another
// port.
func TestFetch(t *testing.T) {
	const config, tokenizer = `{"model_type":"x"}`, `{"version":"1.0"}`
	sum := sha256.Sum256([]byte(tokenizer))
	listed := fmt.Sprintf(`{"rfilename":"tokenizer.json","size":1,"lfs":{"sha256":"%s","size":%d}}`,
		hex.EncodeToString(sum[:]), len(tokenizer))
	const (
		configFile = `{"rfilename":"config.json","size":18,"blobId":"0a2e0ebaa9a1ee8a30d60e0a5a0dc6f9d9a0b1d8"}`
		plain      = `{"rfilename":"config.json","size":18},{"rfilename":"model.safetensors","size":99999999999},{"rfilename":"onnx/config.json"},{"rfilename":"../x.json"}`
		pointer    = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n"
	)
	for name, c := range map[string]struct {
		files  string
		status int
		answer string // for tokenizer.json
		length string // Content-Length that is claimed for it
		want   string // in the error; "": no error
	}{
		"as it should be":   {plain + "," + listed, 200, tokenizer, "", ""},
		"without its size":  {`{"rfilename":"config.json"},{"rfilename":"tokenizer.json"}`, 200, tokenizer, "", ""},
		"an LFS pointer":    {`{"rfilename":"tokenizer.json"}`, 200, pointer, "", "Git LFS pointer"},
		"broken off":        {plain + "," + listed, 200, tokenizer[:4], "17", "broke off"},
		"shorter than told": {plain + "," + listed, 200, tokenizer[:4], "", "4 bytes came, of 17"},
		"another content":   {plain + "," + listed, 200, strings.ToUpper(tokenizer), "", "hash differs"},
		"another blob":      {configFile, 200, "", "", "hash differs"},
		"told too large":    {`{"rfilename":"tokenizer.json","size":99999999}`, 200, tokenizer, "", "too large"},
		"is too large":      {`{"rfilename":"tokenizer.json"}`, 200, strings.Repeat("x", maxFile+1), "", "more than 64 MiB"},
		"too many":          {strings.Repeat(`{"rfilename":"a.json"},`, maxFiles+1) + plain, 200, "", "", "too many"},
		"no token":          {plain, 401, "", "", "HF_TOKEN"},
		"not there":         {plain, 404, "", "", "no such repository"},
		"no model":          {`{"rfilename":"README.md"}`, 200, "", "", "no file of a model"},
	} {
		t.Run(name, func(t *testing.T) {
			var leaked atomic.Int32
			store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "" || r.Header.Get("Referer") != "" {
					leaked.Add(1)
				}
				if c.length != "" {
					w.Header().Set("Content-Length", c.length)
				}
				_, _ = w.Write([]byte(c.answer))
			}))
			defer store.Close()
			hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Header.Get("Authorization") != "Bearer hf_x":
					t.Errorf(`%s without the token, want r.Header.Get("Authorization") == "Bearer hf_x"`, r.URL.Path)
				case r.URL.RequestURI() == "/api/models/o/m/revision/main?blobs=true":
					w.WriteHeader(c.status)
					fmt.Fprintf(w, `{"sha":%q,"siblings":[%s]}`, commit, c.files)
				case r.URL.Path == "/o/m/resolve/"+commit+"/config.json":
					_, _ = w.Write([]byte(config))
				case r.URL.Path == "/o/m/resolve/"+commit+"/tokenizer.json":
					http.Redirect(w, r, store.URL+"/blob?signature=s3cret", http.StatusFound)
				default:
					t.Errorf("got a request for %s, want one of the paths above", r.URL)
				}
			}))
			defer hub.Close()
			dir := filepath.Join(t.TempDir(), "models", "o--m")
			got, err := Hub{hub.URL, "hf_x"}.Fetch(t.Context(), "o/m", "", dir)
			if leaked.Load() > 0 {
				t.Errorf("the token went to another place: got %d, want 0", leaked.Load())
			}
			if c.want == "" && (err != nil || got != commit) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) ||
				err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%q, %v (want %q)", got, err, c.want)
			}
			left, _ := os.ReadDir(filepath.Dir(dir))
			if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); (err == nil) != (c.want == "") || c.want != "" && len(left) > 0 {
				t.Errorf(`left behind: %v, %v, want (err == nil) == (c.want == ""), c.want == "" or len(left) == 0`, left, err)
			}
		})
	}
	if _, err := (Hub{Endpoint: "http://127.0.0.1:1"}).Fetch(t.Context(), "../../x", "", t.TempDir()); err == nil {
		t.Errorf("a name that leaves its place is taken: got %v, want an error", err)
	}
}

// TestFromEnvironment: endpoint and token come from the variables of Hugging Face's own tools; without an endpoint nobody is asked.
func TestFromEnvironment(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "token"), []byte("hf_file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		env         map[string]string
		token, want string
	}{
		"none":           {nil, "", "HF_ENDPOINT is not set"},
		"no URL":         {map[string]string{"HF_ENDPOINT": "hub"}, "", "not the URL"},
		"with password":  {map[string]string{"HF_ENDPOINT": "http://a:s3cret@hub"}, "", "not the URL"},
		"a token":        {map[string]string{"HF_ENDPOINT": "http://hub/", "HF_TOKEN": "hf_env", "HF_HOME": home}, "hf_env", ""},
		"a token's file": {map[string]string{"HF_ENDPOINT": "http://hub", "HF_HOME": home}, "hf_file", ""},
	} {
		h, err := FromEnvironment(func(key string) string { return c.env[key] })
		if c.want == "" && (err != nil || h != Hub{"http://hub", c.token}) ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf(`%s: %+v, %v, want c.want != "" or (no error, h == Hub{"http://hub", c.token}), c.want == "" or (an error, `+
				`%q in err.Error(), no "s3cret" in err.Error())`, name, h, err, c.want)
		}
	}
}
