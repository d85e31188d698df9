// Package rollout tells an operator, between `enforce: 0%` and steering all requests, what steering brings.
package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/report"
)

// ReportOptions are the arguments and flags of `sightline report`: whose report is printed.
type ReportOptions struct {
	Files []string `arg:"" optional:"" type:"existingfile" help:"Decision logs; none: ask a running Sightline."`
	Admin string   `kong:"-"` // its admin page
	JSON  bool     `kong:"-"` // print one object
	Since string   `placeholder:"TIME|AGO" help:"Only requests decided since: 2h, or 2026-11-21T08:00:00Z."`
	Until string   `placeholder:"TIME|AGO" help:"Only requests decided before."`
	Model string   `kong:"-"` // only requests for this model
}

const maxReport = 1 << 20 // bytes of an answer

// Report prints the effect of steering.
func Report(ctx context.Context, o ReportOptions, out io.Writer) error {
	r, err := o.read(ctx)
	if err != nil {
		return err
	}
	none := r.Steered.Requests+r.Unsteered.Requests == 0
	switch {
	case none && len(o.Files) > 0:
		return fmt.Errorf("%s: no request in it that was decided (want what decision_log writes)%s", strings.Join(o.Files, ", "),
			strings.TrimRight(r.LeftOut(), "\n"))
	case o.JSON:
		return json.NewEncoder(out).Encode(r)
	case none && (o.Since != "" || o.Until != "" || o.Model != ""):
		_, err = fmt.Fprintln(out, "Nothing to report: no request of that range has ended.")
		return err
	case none:
		_, err = fmt.Fprintf(out, "Nothing to report yet: no request has ended since %s.\n", r.Since.UTC().Format(time.RFC3339))
		return err
	}
	fmt.Fprint(out, r)
	if len(o.Files) > 0 {
		return nil
	}
	return o.foretell(ctx, out)
}

// foretell prints what other caches would bring the models of a running Sightline, by their last hour.
func (o *ReportOptions) foretell(ctx context.Context, out io.Writer) error {
	text, err := admin.Ask(ctx, admin.AdminRequest{Base: o.Admin, Path: "/forecast", MaxBytes: maxReport})
	if err != nil {
		return err
	}
	var list []router.ModelForecast
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("/forecast: %w", err)
	}
	for i := range list {
		f := &list[i]
		if o.Model == "" || o.Model == f.Model {
			fmt.Fprintf(out, "\n%s, by the last hour: %s\n", f.Model, f.Hour.String())
		}
	}
	return nil
}

func (o *ReportOptions) read(ctx context.Context) (r report.Report, err error) {
	of, err := o.of(time.Now())
	if err != nil {
		return r, err
	}
	if len(o.Files) == 0 {
		query := url.Values{}
		for key, at := range map[string]time.Time{"since": of.Since, "until": of.Until} {
			if !at.IsZero() {
				query.Set(key, at.Format(time.RFC3339))
			}
		}
		if of.Model != "" {
			query.Set("model", of.Model)
		}
		text, err := admin.Ask(ctx, admin.AdminRequest{Base: o.Admin, Path: "/report?" + query.Encode(), MaxBytes: maxReport})
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		return r, err
	}
	lines, end, err := readers(o.Files)
	defer end()
	if err != nil {
		return r, err
	}
	r, err = report.ReadLog(lines, of)
	if err != nil {
		err = fmt.Errorf("%s: %w (want what decision_log writes)", strings.Join(o.Files, ", "), err)
	}
	return r, err
}

// of returns what is selected.
func (o *ReportOptions) of(now time.Time) (r report.Range, err error) {
	r.Model = o.Model
	for _, one := range []struct {
		flag, text string
		to         *time.Time
	}{{"--since", o.Since, &r.Since}, {"--until", o.Until, &r.Until}} {
		if one.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, one.text)
		if ago, fails := time.ParseDuration(one.text); fails == nil {
			at, err = now.Add(-ago), nil
		}
		if err != nil {
			return r, fmt.Errorf("%s %q: want a duration such as 2h, or a time such as 2026-11-21T08:00:00Z", one.flag, one.text)
		}
		*one.to = at
	}
	return r, nil
}

// readers returns a reader of the concatenated files. The caller must call end, also after an error.
func readers(files []string) (_ io.Reader, end func(), err error) {
	var all []io.Reader
	var open []*os.File
	end = func() {
		for _, f := range open {
			_ = f.Close() // read only
		}
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, end, err
		}
		open, all = append(open, f), append(all, f)
	}
	return io.MultiReader(all...), end, nil
}
