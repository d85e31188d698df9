// Package bundle puts what a bug report needs into one tar.gz: the effective configuration, the version, what a running Sightline
// and an Envoy say of themselves, and doctor's checks. Prompts, images and keys are in none of these pages.
//
// A secret is taken out in three ways. Of Sightline's JSON go clients' words (clientText), of Envoy's the keys that may hold a secret
// (redact), and of every text the tokens, what the configuration's ${…} references stand for, and the userinfo and query of URLs (scrub).
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

	"github.com/sightline-router/sightline/internal/admin"
	"github.com/sightline-router/sightline/internal/buildinfo"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/internal/doctor"
)

const (
	maxAnswer = 32 << 20 // bytes of a page; a larger one is left out
	patience  = time.Minute
)

// Options say what is asked. What is empty is left out, and listed as missing; so is what does not answer.
type Options struct {
	Config string    // Sightline's file
	Admin  string    // a running Sightline's admin page, as URL
	Token  string    // its admin_token; "": the file's
	Envoy  string    // Envoy's admin page, as URL
	File   string    // where to; "": sightline-bundle-TIME.tar.gz in the working directory
	Out    io.Writer // gets the list of what is in it
}

type bundle struct {
	cfg     config.Config // zero: none could be read
	token   string
	tar     *tar.Writer
	out     io.Writer
	missing strings.Builder
}

// Run writes the file, readable by its owner alone. What could not be had is no error: missing.txt in it says why.
func Run(ctx context.Context, o Options) (err error) {
	now := time.Now()
	name := cmp.Or(o.File, now.UTC().Format("sightline-bundle-20060102T150405Z.tar.gz"))
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	zipped := gzip.NewWriter(file)
	b := &bundle{token: o.Token, tar: tar.NewWriter(zipped), out: o.Out}
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
	take("version.json", func() ([]byte, error) { return json.Marshal(buildinfo.Read()) })
	for _, page := range []string{"workers", "probes", "audit", "decisions?n=200", "hosts", "metrics"} {
		path, _, _ := strings.Cut(page, "?")
		take("sightline/"+path, func() ([]byte, error) {
			text, err := get(ctx, o.Admin, page, b.token)
			return clientText.ReplaceAll(text, []byte("${1}"+hidden+`"`)), err
		})
	}
	for _, page := range []string{"stats?format=json", "server_info", "config_dump"} {
		path, _, _ := strings.Cut(page, "?")
		take("envoy/"+path, func() ([]byte, error) {
			text, err := get(ctx, o.Envoy, page, "")
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
		_, err := doctor.Run(ctx, doctor.Options{Config: o.Config, Admin: o.Admin, Envoy: o.Envoy, JSON: true, Out: &out})
		return out.Bytes(), err
	})
	if b.missing.Len() > 0 {
		err = errors.Join(err, b.add("missing.txt", []byte(b.missing.String()), now))
		fmt.Fprintf(b.out, "\nnot in it:\n%s", b.scrub(b.missing.String()))
	}
	fmt.Fprintf(b.out, "\nwritten to %s; look through it before you pass it on\n", name)
	return err
}

// configuration is the effective one, with references as they stand in the file.
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

// get gives one page.
func get(ctx context.Context, base, page, token string) ([]byte, error) {
	if base == "" {
		return nil, errors.New("not asked for (give its admin page's URL)")
	}
	return admin.Ask(ctx, admin.Question{Base: base, Path: "/" + page, Token: token, Most: maxAnswer})
}

// hidden stands where a secret was.
const hidden = "hidden"

var (
	userinfo = regexp.MustCompile(`://[^/\s"'@?#]+@`)
	query    = regexp.MustCompile(`(://[^\s"'?]*\?)[^\s"']+`)
	// What Sightline tells of clients' words, with audit_text: the text of two tokens. Names of models that they asked for stay.
	clientText = regexp.MustCompile(`("(?:our_text|their_text)": *")(?:[^"\\]|\\.)*"`)
	// Envoy's keys whose values may be secrets or hold them: data sources, keys, and a whole configuration as a flag.
	secretKey = regexp.MustCompile(`(?i)^(inline_(string|bytes)|config_yaml|.*(password|private_key|secret|token)|authorization|cookie)$`)
	// Headers, as Envoy's lists of headers to add and to match name them.
	secretHeader = regexp.MustCompile(`(?i)authorization|cookie|api-?key|token|secret|password`)
)

// scrub takes out of a text what the configuration refers to, the tokens, and the userinfo and query of URLs.
func (b *bundle) scrub(text string) string {
	text = b.cfg.Hide(errors.New(text)).Error()
	for _, token := range []string{b.token, b.cfg.AdminToken} {
		if token != "" {
			quoted, _ := json.Marshal(token) // a string does not fail
			text = strings.NewReplacer(token, hidden, string(quoted[1:len(quoted)-1]), hidden).Replace(text)
		}
	}
	return query.ReplaceAllString(userinfo.ReplaceAllString(text, "://"+hidden+"@"), "${1}"+hidden)
}

// redacted is JSON of Envoy's without what may be secret. What is no JSON is not passed on.
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

// redact hides each text below a key that may hold a secret, and those beside a header's name that does.
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
