// Package bundle collects what a bug report needs in one tar.gz: the effective configuration, the version, the pages of a running
// Sightline and an Envoy, and doctor's checks. None of these pages contains prompts, images or keys.
//
// Secrets are removed in two ways: keys that may hold a secret from Envoy's pages (redact), and from every text the
// tokens, the values of the configuration's ${…} references, and the userinfo and query of URLs (scrub).
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/internal/buildinfo"
)

const (
	maxAnswer = 32 << 20 // bytes of a page; a larger one is left out
	patience  = time.Minute
)

// Options are the flags of `sightline bundle`. What is empty is left out, and listed as missing; so is what does not answer.
type Options struct {
	File   string `arg:"" optional:"" help:"A new file; default: sightline-bundle-TIME.tar.gz."`
	Config string `kong:"-"` // the configuration, whose admin and envoy.admin are asked
}

type bundle struct {
	cfg     config.Config // the default if it could not be read
	token   string
	tar     *tar.Writer
	out     io.Writer
	missing strings.Builder
}

// Run writes the file, readable only by its owner. What cannot be collected is not an error: missing.txt in it gives the reasons.
func Run(ctx context.Context, o Options, out io.Writer) (err error) {
	now := time.Now()
	name := cmp.Or(o.File, now.UTC().Format("sightline-bundle-20060102T150405Z.tar.gz"))
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	zipped := gzip.NewWriter(file)
	b := &bundle{cfg: config.Default(), token: os.Getenv(admin.TokenVariable), tar: tar.NewWriter(zipped), out: out}
	defer func() {
		err = errors.Join(err, b.tar.Close(), zipped.Close(), file.Close())
	}()
	take := func(name string, get func() ([]byte, error)) {
		text, e := get()
		if e != nil {
			fmt.Fprintf(&b.missing, "%s: %v\n", name, e)
			return
		}
		err = errors.Join(err, b.add(name, text, now))
	}
	take("config.yaml", func() ([]byte, error) { return b.configuration(o.Config) })
	own, envoy := b.cfg.AdminURL(), ""
	if at := b.cfg.Envoy.Admin; at != "" {
		envoy = "http://" + at
	}
	take("version.json", func() ([]byte, error) { return json.Marshal(buildinfo.Read()) })
	for _, page := range []string{"workers", "problems", "probes", "audit", "decisions?n=200", "unserved", "hosts", "metrics"} {
		path, _, _ := strings.Cut(page, "?")
		take("sightline/"+path, func() ([]byte, error) {
			return get(ctx, own, page, b.token)
		})
	}
	for _, page := range []string{"stats?format=json", "server_info", "config_dump"} {
		path, _, _ := strings.Cut(page, "?")
		take("envoy/"+path, func() ([]byte, error) {
			text, err := get(ctx, envoy, page, "")
			if err != nil {
				return nil, err
			}
			return redacted(text)
		})
	}
	take("doctor.json", func() ([]byte, error) {
		if b.cfg.File == "" {
			return nil, errors.New("wants a configuration")
		}
		ctx, stop := context.WithTimeout(ctx, patience)
		defer stop()
		var out bytes.Buffer
		_, err := doctor.Run(ctx, doctor.Options{Config: o.Config, JSON: true, Out: &out})
		return out.Bytes(), err
	})
	if b.missing.Len() > 0 {
		err = errors.Join(err, b.add("missing.txt", []byte(b.missing.String()), now))
		fmt.Fprintf(b.out, "\nnot in it:\n%s", b.scrub(b.missing.String()))
	}
	fmt.Fprintf(b.out, "\nwritten to %s; review it before you share it\n", name)
	return err
}

// configuration returns the effective configuration, with references as written in the file.
func (b *bundle) configuration(file string) ([]byte, error) {
	if file == "" {
		return nil, errors.New("not asked for (give -c)")
	}
	cfg, err := config.Load(file)
	if err != nil {
		return nil, err
	}
	b.cfg, b.token = cfg, cmp.Or(b.token, cfg.AdminToken)
	if cfg.AdminToken != "" {
		cfg.AdminToken = hidden
	}
	return cfg.YAML()
}

func (b *bundle) add(name string, text []byte, at time.Time) error {
	clean := b.scrub(string(text))
	fmt.Fprintf(b.out, "%-22s %8d bytes\n", name, len(clean))
	err := b.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(clean)), ModTime: at})
	if err != nil {
		return err
	}
	_, err = io.WriteString(b.tar, clean)
	return err
}

// get returns one page.
func get(ctx context.Context, base, page, token string) ([]byte, error) {
	if base == "" {
		return nil, errors.New("not asked for (the configuration names no admin page of it)")
	}
	return admin.Ask(ctx, admin.AdminRequest{Base: base, Path: "/" + page, Token: token, MaxBytes: maxAnswer})
}

// hidden replaces secrets.
const hidden = "hidden"

var (
	userinfo = regexp.MustCompile(`://[^/\s"'@?#]+@`)
	query    = regexp.MustCompile(`(://[^\s"'?]*\?)[^\s"']+`)
	// Envoy's keys whose values may be or contain secrets: data sources, keys, and a whole configuration as a flag.
	secretKey = regexp.MustCompile(`(?i)^(inline_(string|bytes)|config_yaml|.*(password|private_key|secret|token)|authorization|cookie)$`)
	// Headers in Envoy's lists of headers to add and to match.
	secretHeader = regexp.MustCompile(`(?i)authorization|cookie|api-?key|token|secret|password`)
)

// scrub removes from a text the values of the configuration's references, the tokens, and the userinfo and query of URLs.
func (b *bundle) scrub(text string) string {
	text = b.cfg.Hide(errors.New(text)).Error()
	for _, token := range []string{b.token, b.cfg.AdminToken} {
		if token != "" {
			quoted, _ := json.Marshal(token) // a string always marshals
			text = strings.NewReplacer(token, hidden, string(quoted[1:len(quoted)-1]), hidden).Replace(text)
		}
	}
	return query.ReplaceAllString(userinfo.ReplaceAllString(text, "://"+hidden+"@"), "${1}"+hidden)
}

// redacted returns Envoy's JSON without possible secrets. Text that is not JSON is refused.
func redacted(text []byte) ([]byte, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("no JSON: %w", err)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(redact(v, false))
	return out.Bytes(), err
}

// redact hides each text below a key that may hold a secret, and the value beside the name of a header that may.
func redact(v any, secret bool) any {
	switch v := v.(type) {
	case map[string]any:
		header := false
		for _, of := range []string{"key", "name", "header_name"} {
			name, _ := v[of].(string)
			header = header || len(v) > 1 && !strings.Contains(name, ".") && secretHeader.MatchString(name)
		}
		for key, below := range v {
			if names := key == "key" || key == "name" || key == "header_name"; !names || secret {
				v[key] = redact(below, secret || header || secretKey.MatchString(key))
			}
		}
	case []any:
		for i := range v {
			v[i] = redact(v[i], secret)
		}
	case string:
		if secret {
			return hidden
		}
	}
	return v
}
