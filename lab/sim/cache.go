package sim

import (
	"github.com/sightline-router/sightline/lab/vllmcache"
	"github.com/sightline-router/sightline/lab/vllmid"
)

// pool is the KV cache of one data-parallel rank. Not safe for concurrent use.
type pool struct {
	*vllmcache.Cache[vllmid.Digest, *content]
	noClear bool    // a reset is told block by block
	events  []event // not yet published
}

// content is one cached block as a worker's truth: what a router should know of it.
type content struct {
	hash, parent vllmid.Digest // parent "": the first block of a prompt
	tokens       []uint32
	keys         []vllmid.Key
}

// request is a sequence as the cache sees it.
type request = vllmcache.Request[vllmid.Digest]

func newPool(o vllmcache.Options) (*pool, error) {
	c, err := vllmcache.New[vllmid.Digest, *content](o)
	if err != nil {
		return nil, err
	}
	p := &pool{Cache: c}
	c.Tell = p.tell
	c.Content = func(r *request, from, to int) *content {
		s := r.Owner.(*sequence)
		return &content{hash: s.endsWith(to), parent: s.endsWith(from), tokens: append([]uint32(nil), s.tokens[from:to]...),
			keys: vllmid.Keys(from, to, s.items, s.scope)}
	}
	return p, nil
}

func (p *pool) tell(e vllmcache.Event[vllmid.Digest]) {
	if !e.Stored {
		p.events = append(p.events, event{kind: removed, group: e.Group, hashes: []vllmid.Digest{e.Hash}})
		return
	}
	s := e.Request.Owner.(*sequence)
	told := event{kind: stored, group: e.Group, size: e.Size, parent: s.endsWith(e.From), tokens: s.tokens[e.From:e.To],
		adapter: s.adapter, session: s.session,
		items: s.items, at: e.From}
	if e.From == 0 {
		told.salt = s.scope.Salt
	}
	for _, i := range e.Kept {
		told.hashes = append(told.hashes, s.endsWith((i+1)*e.Size))
		told.keys = append(told.keys, vllmid.Keys(i*e.Size, (i+1)*e.Size, s.items, s.scope))
	}
	p.events = append(p.events, told)
}

// reset forgets everything; false if a request is running. The event waits for the next batch, as in vLLM.
func (p *pool) reset() bool {
	var gone []event
	for key := range p.Held() {
		gone = append(gone, event{kind: removed, group: key.Group, hashes: []vllmid.Digest{key.Hash}})
	}
	if !p.Reset() {
		return false
	}
	if !p.noClear {
		gone = []event{{kind: cleared}}
	}
	p.events = append(p.events, gone...)
	return true
}
