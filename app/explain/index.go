package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/sightline-router/sightline/app/admin"
)

// maxIndex bounds the size of a fetched listing: some 9 million blocks.
const maxIndex = 1 << 30

// showIndex prints what an index holds of one worker-rank: a running Sightline's, by its admin page, or a file's.
func (o *Options) showIndex(ctx context.Context, w io.Writer) error {
	text, err := o.listing(ctx)
	if err != nil {
		return fmt.Errorf("--index: %w", err)
	}
	if o.JSONL {
		_, err = w.Write(text)
		return err
	}
	held := 0
	var rows bytes.Buffer
	for lines := json.NewDecoder(bytes.NewReader(text)); lines.More(); {
		var b admin.Block
		if err := lines.Decode(&b); err != nil {
			return fmt.Errorf("--index: want the output of /index, one object per line: %w", err)
		}
		before := "front"
		if b.Parent >= 0 {
			before = "after " + strconv.Itoa(b.Parent)
		}
		if len(b.Tiers) > 0 {
			held++
		}
		fmt.Fprintf(&rows, "block %-6d place %-5d %-12s local %s  engine %s  %s\n", b.Block, b.Place, before,
			b.Local, b.EngineHash, strings.Join(b.Tiers, ","))
	}
	fmt.Fprintf(w, "%d blocks held\n", held)
	_, err = rows.WriteTo(w)
	return err
}

// listing reads a file, or asks a running Sightline.
func (o *Options) listing(ctx context.Context) ([]byte, error) {
	if !strings.HasPrefix(o.Index, "http://") && !strings.HasPrefix(o.Index, "https://") {
		return os.ReadFile(o.Index)
	}
	if o.Worker == "" {
		return nil, fmt.Errorf("%s has the index of all workers (give --worker NAME)", o.Index)
	}
	return o.ask(ctx, http.MethodGet, o.Index, "/index", url.Values{"worker": {o.Worker}, "rank": {strconv.Itoa(o.Rank)}}, nil)
}

// ask asks a running Sightline's admin address.
func (o *Options) ask(ctx context.Context, method, base, path string, query url.Values, send []byte) ([]byte, error) {
	return admin.Ask(ctx, admin.AdminRequest{Method: method, Base: base, Path: path + "?" + query.Encode(), Token: o.Token,
		Body: send, MaxBytes: maxIndex})
}
