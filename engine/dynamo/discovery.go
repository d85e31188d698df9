package dynamo

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Deployment is what the file back end of Dynamo's discovery (--discovery-backend file, DYN_FILE_KV) says of one
// endpoint. Everything is sorted by worker id.
type Deployment struct {
	Workers   []Worker
	Endpoints []string // ZMQ addresses that KV events are published on
	Unread    int      // records that could not be read

	now time.Time
}

// Worker is one instance of the endpoint.
type Worker struct {
	ID        uint64
	Host      string // of its request plane; "" if that is not TCP
	Ranks     int    // data-parallel ranks, from 1
	BlockSize int    // tokens; 0: its model card is not there yet
	Model     string // the model card's display name
	Eagle     bool   // its events speak of pairs of tokens
}

const (
	maxRecords     = 1 << 16
	maxRecordBytes = 4 << 20
)

// recordLifetime is the age at which a record no longer counts: its owner touches it every few seconds and takes it away when it
// ends in peace.
const recordLifetime = 30 * time.Second

// Discover reads a discovery folder as it stands at now. A folder that is not there yet is an empty deployment; what
// cannot be read in it is counted.
func Discover(root string, s Scope, now time.Time) (d Deployment, err error) {
	d.now = now
	workers := map[uint64]*Worker{}
	at := s.Namespace + "/" + s.Component + "/" + s.Endpoint
	err = d.each(root, "instances", at+"/", func(b []byte) error {
		var r struct {
			ID        uint64 `json:"instance_id"`
			Transport struct {
				TCP string `json:"tcp"`
			} `json:"transport"`
		}
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		w := &Worker{ID: r.ID, Ranks: 1}
		if addr, _, ok := strings.Cut(r.Transport.TCP, "/"); ok {
			w.Host, _, _ = net.SplitHostPort(addr)
		}
		workers[r.ID] = w
		return nil
	})
	if err != nil {
		return d, err
	}
	err = d.each(root, "mdc", at+"/", func(b []byte) error {
		var r struct {
			ID   uint64 `json:"instance_id"`
			Card struct {
				Name      string `json:"display_name"`
				BlockSize int    `json:"kv_cache_block_size"`
				Runtime   struct {
					Ranks int  `json:"data_parallel_size"`
					First int  `json:"data_parallel_start_rank"`
					Eagle bool `json:"enable_eagle"`
				} `json:"runtime_config"`
			} `json:"card_json"`
		}
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		if w := workers[r.ID]; w != nil {
			w.Model, w.BlockSize, w.Eagle = r.Card.Name, r.Card.BlockSize, r.Card.Runtime.Eagle
			w.ranks(r.Card.Runtime.First + r.Card.Runtime.Ranks)
		}
		return nil
	})
	if err != nil {
		return d, err
	}
	events := "namespace/" + s.Namespace + "/component/" + s.Component + "/endpoint/" + s.Endpoint + "/topic/" + Topic + "/"
	err = d.each(root, "event_sources", events, func(b []byte) error {
		var r struct {
			Metadata struct {
				Worker struct {
					ID   uint64 `json:"worker_id"`
					Rank int    `json:"dp_rank"`
				} `json:"worker"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		if w := workers[r.Metadata.Worker.ID]; w != nil {
			w.ranks(r.Metadata.Worker.Rank + 1)
		}
		return nil
	})
	if err != nil {
		return d, err
	}
	err = d.each(root, "event_channels", events, func(b []byte) error {
		var r struct {
			Transport struct {
				Kind   string `json:"kind"`
				Config struct {
					Endpoint string `json:"endpoint"`
				} `json:"config"`
			} `json:"transport"`
		}
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		if r.Transport.Kind == "Zmq" {
			d.Endpoints = append(d.Endpoints, r.Transport.Config.Endpoint)
		}
		return nil
	})
	for _, w := range workers {
		d.Workers = append(d.Workers, *w)
	}
	slices.SortFunc(d.Workers, func(a, b Worker) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	slices.Sort(d.Endpoints)
	d.Endpoints = slices.Compact(d.Endpoints)
	return d, err
}

// maxDataParallel bounds what a record may say.
const maxDataParallel = 1024

func (w *Worker) ranks(n int) { w.Ranks = min(max(w.Ranks, n), maxDataParallel) }

// each calls read with every record of one bucket whose key begins so. A key is a file's name, percent-encoded.
func (d *Deployment) each(root, bucket, prefix string, read func([]byte) error) error {
	dir := filepath.Join(root, "v1", bucket)
	files, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("dynamo: discovery: %w", err)
	}
	for i, f := range files {
		if i >= maxRecords {
			return fmt.Errorf("dynamo: discovery: more than %d records in %s", maxRecords, dir)
		}
		key, err := url.PathUnescape(f.Name())
		if err != nil || !strings.HasPrefix(key, prefix) || f.IsDir() {
			continue
		}
		info, err := f.Info()
		if err != nil || info.Size() > maxRecordBytes {
			d.Unread++
			continue
		}
		if d.now.Sub(info.ModTime()) > recordLifetime {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil || read(b) != nil {
			d.Unread++ // gone again, or being written
		}
	}
	return nil
}
