package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/sightline-router/sightline/prompt"
)

// show prints an explained request, for people or as one line of JSON.
func (o *Options) show(w io.Writer, e explained) {
	if o.JSONL {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(e)
		return
	}
	fmt.Fprintf(w, "── %s\n", cmp.Or(e.ID, "request"))
	if e.memory && e.Error != "" {
		fmt.Fprintf(w, "exact     no, all of it is learned: %s\n\n", e.Error)
		return
	}
	if e.Error != "" {
		fmt.Fprintf(w, "error     %s\n\n", e.Error)
		return
	}
	fmt.Fprintf(w, "family    %s\n", cmp.Or(e.Family, "none"))
	fmt.Fprintf(w, "text      %s\n", strings.ReplaceAll(e.Rendered, "\n", "\n          "))
	fmt.Fprintf(w, "tokens    %d: %s\n", len(e.TokenIDs), runs(e.TokenIDs))
	for _, it := range e.MM {
		fmt.Fprintf(w, "%-9s tokens %d to %d, %d×%d, content %.16s…, the engine's name %s\n", it.Modality,
			it.Offset, it.Offset+it.Length-1, it.Width, it.Height, it.ContentID, it.Name)
	}
	for i := range e.LocalHashes {
		fmt.Fprintf(w, "block %-3d local %s  chained %s\n", i, e.LocalHashes[i], e.BlockHashes[i])
	}
	switch {
	case e.Exact:
		fmt.Fprintf(w, "exact     yes\n\n")
	case e.Why == prompt.Uncompared:
		fmt.Fprintf(w, "exact     no, predicted: %s\n\n", e.Why)
	default:
		fmt.Fprintf(w, "exact     the first %d tokens; what follows is learned: %s\n\n", len(e.TokenIDs), e.Why)
	}
}

// runs writes token ids with repeats shortened: 151644 8948 151655×1196.
func runs(ids []uint32) string {
	var b strings.Builder
	for i := 0; i < len(ids); {
		j := i
		for j < len(ids) && ids[j] == ids[i] {
			j++
		}
		if j-i > 3 {
			fmt.Fprintf(&b, "%d×%d ", ids[i], j-i)
		} else {
			j = i + 1
			fmt.Fprintf(&b, "%d ", ids[i])
		}
		i = j
	}
	return strings.TrimSpace(b.String())
}
