package dynamo

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/internal/sockets"
)

// deployment holds one endpoint's records in the file back end of Dynamo's discovery (--discovery-backend file, DYN_FILE_KV),
// sorted by worker id.
type deployment struct {
	Workers   []Worker
	Endpoints []string // ZMQ addresses of the publishers of KV events
}

// Worker is one instance of the endpoint.
type Worker struct {
	ID        uint64
	Host      string // host of its request plane; "" if that is not TCP
	FirstRank int    // the first of its data-parallel ranks, which are numbered among all nodes
	Ranks     int    // how many they are, at least 1
	BlockSize int    // in tokens; 0 until its model card appears
}

const (
	maxRecords     = 1 << 16
	maxRecordBytes = 4 << 20
)

// recordLifetime is the age from which a record is ignored. Its owner touches it every few seconds, and deletes it on an orderly
// exit.
const recordLifetime = 30 * time.Second

// discover reads the live records of a discovery folder at now. A missing folder is an empty deployment. A record that cannot be
// read is skipped, since it may be half written.
func discover(root string, s Scope, now time.Time) (d deployment, err error) {
	workers := map[uint64]*Worker{}
	instances, events := s.String()+"/", s.events()
	for _, bucket := range []struct {
		name, prefix string
		read         func(gjson.Result)
	}{
		{"instances", instances, func(r gjson.Result) {
			w := &Worker{ID: r.Get("instance_id").Uint(), Ranks: 1}
			if addr, _, ok := strings.Cut(r.Get("transport.tcp").Str, "/"); ok {
				w.Host, _, _ = net.SplitHostPort(addr)
			}
			workers[w.ID] = w
		}},
		{"mdc", instances, func(r gjson.Result) {
			card := r.Get("card_json")
			if w := workers[r.Get("instance_id").Uint()]; w != nil {
				w.BlockSize = int(max(0, card.Get("kv_cache_block_size").Int()))
				shape := card.Get("runtime_config")
				first, n := shape.Get("data_parallel_start_rank").Int(), shape.Get("data_parallel_size").Int()
				w.FirstRank, w.Ranks = int(max(0, min(first, maxRank))), int(max(1, min(n, maxDataParallel)))
			}
		}},
		{"event_sources", events, func(r gjson.Result) {
			if w := workers[r.Get("metadata.worker.worker_id").Uint()]; w != nil {
				n := r.Get("metadata.worker.dp_rank").Int() + 1 - int64(w.FirstRank)
				w.Ranks = int(max(int64(w.Ranks), min(n, maxDataParallel)))
			}
		}},
		{"event_channels", events, func(r gjson.Result) {
			if r.Get("transport.kind").Str == "Zmq" {
				if at := r.Get("transport.config.endpoint").Str; hasSocket(workers, at) {
					d.Endpoints = append(d.Endpoints, at)
				}
			}
		}},
	} {
		if err := eachRecord(filepath.Join(root, "v1", bucket.name), bucket.prefix, now, bucket.read); err != nil {
			return d, err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(workers)) {
		d.Workers = append(d.Workers, *workers[id])
	}
	slices.Sort(d.Endpoints)
	d.Endpoints = slices.Compact(d.Endpoints)
	return d, nil
}

// hasSocket reports whether an endpoint is a tcp socket of one of the workers: a record does not have us dial other hosts, or files. A host
// is known if the request plane is TCP.
func hasSocket(workers map[uint64]*Worker, endpoint string) bool {
	for _, w := range workers {
		host := w.Host
		if host == "" {
			host, _, _ = net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
		}
		if zmq.CheckClaimed(endpoint, host) == nil {
			return true
		}
	}
	return false
}

// Workers returns the workers of an endpoint in a discovery folder at now.
func Workers(root string, s Scope, now time.Time) ([]Worker, error) {
	d, err := discover(root, s, now)
	return d.Workers, err
}

// maxDataParallel bounds the ranks that a record may claim, and maxRank their numbers.
const (
	maxDataParallel = 1024
	maxRank         = 1 << 20
)

// eachRecord calls read with the records of a folder that are alive at now and whose keys have the prefix. A record's key is its file
// name, percent-encoded.
func eachRecord(dir, prefix string, now time.Time, read func(gjson.Result)) error {
	files, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("dynamo: discovery: %w", err)
	}
	if len(files) > maxRecords {
		return fmt.Errorf("dynamo: discovery: more than %d records in %s", maxRecords, dir)
	}
	for _, f := range files {
		key, err := url.PathUnescape(f.Name())
		if err != nil || !strings.HasPrefix(key, prefix) || f.IsDir() {
			continue
		}
		info, err := f.Info()
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxRecordBytes || now.Sub(info.ModTime()) > recordLifetime {
			continue
		}
		b, err := fs.ReadFile(secure.Dir(dir), f.Name())
		if sockets.Exhausted(err) { // otherwise its worker would seem to have left
			return fmt.Errorf("dynamo: discovery: %w", err)
		}
		if err == nil && gjson.ValidBytes(b) { // otherwise it was deleted meanwhile or is half written
			read(gjson.ParseBytes(b))
		}
	}
	return nil
}
