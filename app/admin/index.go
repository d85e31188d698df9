package admin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"github.com/sightline-router/sightline/indexer"
)

// Block is one line of /index.
type Block struct {
	Block      int      `json:"block"`  // its number in the listing
	Parent     int      `json:"parent"` // the number of the preceding block; -1: none
	Place      int      `json:"place"`  // blocks before it in its prompts
	Local      string   `json:"local_hash"`
	EngineHash string   `json:"engine_hash"` // the engine's hash as received
	Tiers      []string `json:"tiers"`       // empty: no longer held, but blocks after it are
}

// writeBlocks writes a listing, one object per line.
func writeBlocks(w io.Writer, list []indexer.Block) {
	out := bufio.NewWriterSize(w, 1<<16)
	defer out.Flush()
	lines := json.NewEncoder(out)
	places := make([]int, len(list))
	for i, b := range list {
		l := Block{Block: i, Parent: b.Parent, Local: fmt.Sprintf("%016x", b.Local), EngineHash: fmt.Sprintf("%016x", b.EngineHash),
			Tiers: []string{}}
		if b.Parent >= 0 {
			l.Place = places[b.Parent] + 1
		}
		places[i] = l.Place
		for t, copies := range b.Copies {
			if copies > 0 {
				l.Tiers = append(l.Tiers, indexer.Tier(t).String())
			}
		}
		if lines.Encode(l) != nil {
			return // the client has gone
		}
	}
}
