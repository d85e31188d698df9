// Package hub fetches the small files of a model, those that prompts depend on, from a model hub that speaks Hugging Face's
// protocol: a branch is resolved to its commit once, and each file is requested by that commit.
//
//	GET ENDPOINT/api/models/NAME/revision/REVISION?blobs=true ─▶ the commit, its files, their sizes and hashes
//	GET ENDPOINT/NAME/resolve/COMMIT/FILE                     ─▶ the file, or a redirect to it
//
// The token is sent only to the endpoint's own host and port. The hub is not trusted: files and their number are bounded, names
// stay within the directory, hashes are verified where they are given, and a directory appears completely or not at all.
package hub

import (
	"cmp"
	"context"
	"crypto/sha1" //nolint:gosec // Git's names of blobs are made so
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/internal/secure"
)

// Bounds of a model's small files: the largest tokenizers have some 35 MB.
const (
	maxFile   = 64 << 20
	maxAll    = 256 << 20
	maxFiles  = 64
	maxAnswer = 16 << 20
	maxHops   = 5
	idle      = 30 * time.Second
)

// Hub is a model hub.
type Hub struct {
	Endpoint string // such as https://hub.example.com
	Token    string // "": none
}

// FromEnvironment reads HF_ENDPOINT, and the token of HF_TOKEN or of the file HF_TOKEN_PATH, by default token in HF_HOME.
func FromEnvironment(getenv func(string) string) (Hub, error) {
	h := Hub{Endpoint: strings.TrimRight(getenv("HF_ENDPOINT"), "/"), Token: strings.TrimSpace(getenv("HF_TOKEN"))}
	u, err := url.Parse(h.Endpoint)
	switch {
	case h.Endpoint == "":
		return h, errors.New("HF_ENDPOINT is not set, and no hub is asked without it (set it to your hub's URL)")
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil:
		return h, errors.New("HF_ENDPOINT is not the URL of a hub (want one such as https://hub.example.com)")
	}
	if h.Token == "" {
		file := cmp.Or(getenv("HF_TOKEN_PATH"), filepath.Join(Home(getenv), "token"))
		if text, err := secure.ReadFile(file); err == nil && len(text) < 4096 {
			h.Token = strings.TrimSpace(string(text))
		}
	}
	return h, nil
}

// Home returns the directory of Hugging Face's own tools: HF_HOME, by default ~/.cache/huggingface.
func Home(getenv func(string) string) string {
	return cmp.Or(getenv("HF_HOME"), filepath.Join(cmp.Or(getenv("XDG_CACHE_HOME"), filepath.Join(getenv("HOME"), ".cache")), "huggingface"))
}

// file is one of a commit's files. Hashes are "" if the hub does not give them.
type file struct {
	Name string `json:"rfilename"`
	Size int64  `json:"size"`
	Blob string `json:"blobId"` // Git's hash of the object in the repository: for an LFS file that of its pointer
	LFS  *struct {
		SHA256 string `json:"sha256"`
		Size   int64  `json:"size"`
	} `json:"lfs"`
}

// Fetch downloads the small files of a model into the directory dir, which must not exist, and returns their commit. A revision is
// a branch, a tag or a commit; "": main.
func (h Hub) Fetch(ctx context.Context, name, revision, dir string) (commit string, err error) {
	if parts := strings.Split(name, "/"); len(parts) > 2 || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%q is not a repository's name (want one such as Qwen/Qwen2.5-VL-7B-Instruct)", name)
	}
	client, end := h.client()
	defer end()
	commit, files, err := h.list(ctx, client, name, cmp.Or(revision, "main"))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), ".fetching-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(part)
	for _, f := range files {
		if err := h.file(ctx, client, name+"/resolve/"+commit+"/"+f.Name, f, filepath.Join(part, f.Name)); err != nil {
			return "", fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return "", err
	}
	return commit, os.Rename(part, dir)
}

// client returns a client that follows redirects, without the token if they lead to another host, and never from https to http.
func (h Hub) client() (c *http.Client, end func()) {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: idle, TLSHandshakeTimeout: idle,
		MaxResponseHeaderBytes: 1 << 20,
		DisableCompression:     true}
	return &http.Client{Transport: t, Timeout: 10 * time.Minute, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		switch from := via[0].URL; {
		case len(via) > maxHops:
			return errors.New("too many redirects")
		case from.Scheme == "https" && req.URL.Scheme != "https":
			return errors.New("a redirect from https to another scheme")
		case req.URL.Host != from.Host || req.URL.Scheme != from.Scheme: // net/http compares only the host name, not the port
			req.Header.Del("Authorization")
		}
		req.Header.Del("Referer")
		return nil
	}}, t.CloseIdleConnections
}

// get requests a path of the endpoint.
func (h Hub) get(ctx context.Context, client *http.Client, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.Endpoint+"/"+path, nil)
	if err != nil {
		return nil, errors.New("the name or revision does not form a valid URL")
	}
	if h.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.Token)
	}
	res, err := client.Do(req)
	if err != nil {
		var wrapped *url.Error // its URL may be signed
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, fmt.Errorf("the hub of HF_ENDPOINT does not answer: %w", err)
	}
	switch res.StatusCode {
	case http.StatusOK:
		return res, nil
	case http.StatusUnauthorized, http.StatusForbidden:
		err = fmt.Errorf("status %d: the hub wants a token that may read it (set HF_TOKEN; for a gated model, accept its terms first)",
			res.StatusCode)
	case http.StatusNotFound:
		err = errors.New("status 404: the hub has no such repository, revision or file")
	default:
		err = fmt.Errorf("status %d of the hub", res.StatusCode)
	}
	res.Body.Close()
	return nil, err
}

// list resolves a revision and returns the files that are needed.
func (h Hub) list(ctx context.Context, client *http.Client, name, revision string) (commit string, files []file, err error) {
	res, err := h.get(ctx, client, "api/models/"+name+"/revision/"+url.PathEscape(revision)+"?blobs=true")
	if err != nil {
		return "", nil, fmt.Errorf("%s at %s: %w", name, revision, err)
	}
	defer res.Body.Close()
	var about struct {
		Commit string `json:"sha"`
		Files  []file `json:"siblings"`
	}
	if json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&about) != nil || !isHex(about.Commit, 40) {
		return "", nil, fmt.Errorf("%s at %s: the hub's answer names no commit", name, revision)
	}
	var all int64
	for _, f := range about.Files {
		folder, base := filepath.Split(f.Name)
		if folder != "" && folder != "additional_chat_templates/" || !engine.AffectsPrompts(f.Name) || !filepath.IsLocal(f.Name) || base == "" {
			continue
		}
		if f.LFS != nil {
			f.Size = f.LFS.Size
		}
		all += f.Size
		if f.Size > maxFile || f.Size < 0 || all > maxAll || len(files) == maxFiles {
			return "", nil,
				fmt.Errorf("%s: with %s (%d bytes) the small files are too many or too large (at most %d MiB each, %d MiB in all, %d files)",
					name, f.Name, f.Size, maxFile>>20, maxAll>>20, maxFiles)
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return "", nil, fmt.Errorf("%s at %s has no file of a model (want config.json, tokenizer.json and the like)", name, revision)
	}
	return about.Commit, files, nil
}

// file downloads one file and verifies its size and hashes.
func (h Hub) file(ctx context.Context, client *http.Client, path string, f file, at string) error {
	res, err := h.get(ctx, client, (&url.URL{Path: path}).EscapedPath())
	if err != nil {
		return err
	}
	defer res.Body.Close()
	content, err := io.ReadAll(io.LimitReader(res.Body, maxFile+1))
	switch {
	case err != nil:
		return fmt.Errorf("broke off after %d bytes: %w", len(content), err)
	case len(content) > maxFile:
		return fmt.Errorf("it has more than %d MiB", maxFile>>20)
	case engine.IsLFSPointer(content):
		return errors.New("the hub gives a Git LFS pointer, not the file (is it a mirror without its large files?)")
	case f.Size > 0 && int64(len(content)) != f.Size:
		return fmt.Errorf("%d bytes came, of %d", len(content), f.Size)
	}
	want, got := f.Blob, ""
	if f.LFS != nil {
		sum := sha256.Sum256(content)
		want, got = f.LFS.SHA256, hex.EncodeToString(sum[:])
	} else {
		sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(content)), content...)) //nolint:gosec // Git's
		got = hex.EncodeToString(sum[:])
	}
	if want != "" && want != got {
		return errors.New("its hash differs from the one that the hub announced")
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, content, 0o644) //nolint:gosec // public files, read by the router's own user
}

func isHex(s string, n int) bool { return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" }
