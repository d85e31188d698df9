package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
)

// TestNoSecretLeaves plants secrets in the configuration and in the answers of a running Sightline and of Envoy. None is in the
// file, its list or its missing.txt, and everything else is still there.
func TestNoSecretLeaves(t *testing.T) {
	const token, fromEnv = "planted-token-0123456789", "planted-env-0123456789"
	t.Setenv("PLANTED", fromEnv)
	leaks := "nats://user:planted-password@10.0.0.1:4222 and http://10.0.0.2/a?sig=planted-query " + token + " " + fromEnv
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer "+token:
			http.Error(w, "who asks?", http.StatusUnauthorized)
		case r.URL.Path == "/workers":
			json.NewEncoder(w).Encode([]findings.Worker{{Name: "worker-a", EventsError: findings.Failure{Text: leaks}}})
		case r.URL.Path == "/audit":
			json.NewEncoder(w).Encode([]audit.Finding{{Model: "kept-model"}})
		case r.URL.Path == "/decisions":
			json.NewEncoder(w).Encode([]router.Recent{{Worker: "kept-choice", Asked: "kept-name"}})
		case r.URL.Path == "/metrics":
			fmt.Fprintln(w, "kept_metric 1")
		default:
			http.NotFound(w, r)
		}
	}))
	defer page.Close()
	envoy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/config_dump":
			fmt.Fprint(w,
				`{"cluster": "kept-cluster", "port": 12345678901234567890, "tls_certificates": [{"private_key": {"inline_bytes": "planted-key"}}],
				"add": [{"header": {"key": "Authorization", "value": "Bearer planted-bearer"}}, {"header": {"key": "x-kept", "value": "kept-value"}}],
				"match": [{"name": "x-api-key", "string_match": {"exact": "planted-match"}}],
				"filter": {"name": "envoy.filters.http.credential_injector", "generic_secret": {"inline_string": "planted-generic"}}}`)
		case "/server_info":
			fmt.Fprint(w, `{"command_line_options": {"config_yaml": "a: planted-yaml"}}`)
		default:
			http.Redirect(w, r, "http://10.255.255.1/elsewhere", http.StatusFound)
		}
	}))
	defer envoy.Close()

	dir := t.TempDir()
	config, file := filepath.Join(dir, "sightline.yaml"), filepath.Join(dir, "bundle.tar.gz")
	text := "admin: " + strings.TrimPrefix(page.URL, "http://") + "\nenvoy: {admin: '" + strings.TrimPrefix(envoy.URL,
		"http://") + "'}\nadmin_token: " + token +
		"\nmodels: [{name: '${env:PLANTED}', dir: " + dir + ", engine_version: 0.32.0, block_size: 16}]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var list bytes.Buffer
	if err := Run(t.Context(), Options{Config: config, File: file}, &list); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, file)
	all := list.String()
	for _, name := range []string{"config.yaml", "version.json", "sightline/workers", "sightline/metrics",
		"envoy/config_dump", "envoy/server_info", "doctor.json", "missing.txt"} {
		if files[name] == "" {
			t.Errorf("%s is not in it; it says\n%s, want files[name] != \"\"", name, all)
		}
	}
	for name, text := range files {
		all += "\n== " + name + "\n" + text
	}
	if at := strings.Index(all, "planted-"); at >= 0 {
		t.Errorf("a secret is in it: %.300s, want at < 0", all[max(0, at-150):])
	}
	for _, kept := range []string{"worker-a", "kept-model", "kept-choice", "kept-name", "kept_metric", "kept-cluster",
		"kept-value", "12345678901234567890", "${env:PLANTED}", "answers 302"} {
		if !strings.Contains(all, kept) {
			t.Errorf("%s is not in it, want it in all", kept)
		}
	}
	if err := Run(context.Background(), Options{File: file}, io.Discard); !errors.Is(err, os.ErrExist) {
		t.Errorf("a file that is there: got %v, want %v", err, os.ErrExist)
	}
}

func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		text, readErr := io.ReadAll(r)
		err = errors.Join(err, readErr)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
	}
}
