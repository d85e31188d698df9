package dynamo

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// FuzzDiscover: no record in a discovery folder makes its reader panic; each worker has a valid number of ranks and block size.
func FuzzDiscover(f *testing.F) {
	const id = `{"instance_id":7,"transport":{"tcp":"10.0.0.1:5000/x"}}`
	f.Add(id,
		`{"instance_id":7,"card_json":{"display_name":"m","kv_cache_block_size":-16,"runtime_config":{"data_parallel_start_rank":9223372036854775807,"data_parallel_size":1}}}`,
		`{"metadata":{"worker":{"worker_id":7,"dp_rank":3}}}`, `{"transport":{"kind":"Zmq","config":{"endpoint":"tcp://10.0.0.1:1"}}}`)
	f.Add(`{"instance_id":-1e99}`, `[]`, `null`, `{"transport":7}`)
	root := f.TempDir()
	s := Scope{"n", "c", "e"}
	f.Fuzz(func(t *testing.T, instance, card, source, channel string) {
		for bucket, record := range map[string][2]string{"instances": {"n/c/e/7", instance}, "mdc": {"n/c/e/7", card},
			"event_sources":  {"namespace/n/component/c/endpoint/e/topic/kv-events/7", source},
			"event_channels": {"namespace/n/component/c/endpoint/e/topic/kv-events/7", channel}} {
			dir := filepath.Join(root, "v1", bucket)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, url.PathEscape(record[0])), []byte(record[1]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d, err := discover(root, s, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range d.Workers {
			if w.FirstRank < 0 || w.Ranks < 1 || w.Ranks > maxDataParallel || w.BlockSize < 0 {
				t.Fatalf("got %+v, want FirstRank at least 0, Ranks some, Ranks at most %d, BlockSize at least 0", w, maxDataParallel)
			}
		}
	})
}
