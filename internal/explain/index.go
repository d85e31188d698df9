package explain

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// listed is one block of `explain --index --jsonl`.
type listed struct {
	Block      int      `json:"block"`  // its number in the listing
	Parent     int      `json:"parent"` // the block before it in its prompts; -1: none
	Place      int      `json:"place"`  // number of blocks before it in its prompts
	Local      string   `json:"local_hash"`
	EngineHash string   `json:"engine_hash"` // the engine's hash as it came
	Tiers      []string `json:"tiers"`       // none: held no more, but blocks behind it are
}

// maxIndex bounds a snapshot that is fetched: some 60 million blocks.
const maxIndex = 1 << 30

// showIndex prints what an index holds of one worker-rank: a running Sightline's, by its admin page, or a snapshot's.
func (o *Options) showIndex(ctx context.Context, w io.Writer) error {
	snapshot, err := o.snapshot(ctx)
	if err != nil {
		return fmt.Errorf("--index: %w", err)
	}
	ix := indexer.New(indexer.Options{})
	h := ix.Join(indexer.SlotOptions{CountCopies: true})
	if err := ix.Load(h, snapshot); err != nil {
		return fmt.Errorf("--index: %w", err)
	}
	if !o.JSONL {
		note := ""
		if ix.Partial(h) {
			note = ", not all that the worker has: the index was full"
		}
		fmt.Fprintf(w, "%d blocks held%s\n", ix.HeldBlocks(h), note)
	}
	var places []int
	lines := json.NewEncoder(w)
	return ix.Dump(h, func(b indexer.Block) bool {
		l := listed{Block: len(places), Parent: b.Parent, Local: fmt.Sprintf("%016x", b.Local),
			EngineHash: fmt.Sprintf("%016x", b.EngineHash), Tiers: []string{}}
		if b.Parent >= 0 {
			l.Place = places[b.Parent] + 1
		}
		places = append(places, l.Place)
		for t := range indexer.Tier(indexer.Tiers) {
			if b.Tiers>>t&1 != 0 {
				l.Tiers = append(l.Tiers, t.String())
			}
		}
		if o.JSONL {
			return lines.Encode(l) == nil
		}
		before := "front"
		if l.Parent >= 0 {
			before = "after " + strconv.Itoa(l.Parent)
		}
		_, err := fmt.Fprintf(w, "block %-6d place %-5d %-12s local %s  engine %s  %s\n", l.Block, l.Place, before,
			l.Local, l.EngineHash, strings.Join(l.Tiers, ","))
		return err == nil
	})
}

// snapshot reads a file, or asks a running Sightline.
func (o *Options) snapshot(ctx context.Context) ([]byte, error) {
	if !strings.HasPrefix(o.Index, "http://") && !strings.HasPrefix(o.Index, "https://") {
		return os.ReadFile(o.Index)
	}
	if o.Worker == "" {
		return nil, fmt.Errorf("%s has the index of all workers (give --worker NAME)", o.Index)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ask := strings.TrimRight(o.Index, "/") + "/index?" + url.Values{"worker": {o.Worker}, "rank": {strconv.Itoa(o.Rank)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ask, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxIndex+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s answers %d: %s", ask, resp.StatusCode, strings.TrimSpace(string(body[:min(len(body), 300)])))
	case len(body) > maxIndex:
		return nil, fmt.Errorf("%s answers with more than %d bytes", ask, maxIndex)
	}
	return body, nil
}
