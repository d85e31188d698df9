package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/media/pixels"
	"github.com/sightline-router/sightline/media/relay"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/mmhash/enginehash"
	"github.com/sightline-router/sightline/prompt"
)

// Media is shared by all models: the cache of images' names, and the fetcher of images by URL. Safe for concurrent use.
type Media struct {
	store  *mmhash.Store
	pixels *pixels.Names
	fetch  *fetch.Fetcher // nil: URLs are never fetched
	// budget is the total time a request waits for images that are not in its body; 0: no limit.
	budget atomic.Int64 // ns
	locals localFiles
	// Secret, if set before requests come, keys the hashes of blocks and of what enters them.
	Secret *block.Secret

	mu   sync.Mutex
	keys map[string]*rules.Keys // one for all models that agree in everything it depends on

	// Pinned, if set before models are loaded, is called when events reveal the fingerprint by which a model's workers name
	// images. It must return at once.
	Pinned func(model, fingerprint string)

	// Panicked, if set before models are loaded, is called when reading a medium panics (a bug here). The panic costs only that
	// medium or its name. It must return at once.
	Panicked func(where string, err error)

	// NoRoom, if set before models are loaded, is called with the name of a bounded store when an entry does not fit or is evicted:
	// "image names", "images to decode", "local files", and those of fetch.Config. It must return at once.
	NoRoom func(what string)

	// DecodeInline makes pixel digests part of the request instead of a background task. explain sets it, serve never does.
	DecodeInline bool

	// Relay, if set before requests come, serves fetched images to the workers; with RelayDataURLs also images that came in a
	// body.
	Relay         *relay.Relay
	RelayDataURLs bool
}

// knownNames bounds the names that are cached, about 300 bytes each.
const knownNames = 1 << 18

// NewMedia makes the shared part. With a nil c nothing is ever fetched. The caller must Close it.
func NewMedia(c *fetch.Config) (*Media, error) {
	m := &Media{keys: make(map[string]*rules.Keys)}
	m.locals = newLocalFiles(func() { m.noRoom("local files") })
	var err error
	m.store, err = mmhash.NewStore(knownNames, func() { m.noRoom("image names") })
	if err != nil {
		return nil, err
	}
	m.pixels = pixels.NewNames(m.store, func(err error) { m.panicked("pixels", err) }, func() { m.noRoom("images to decode") })
	if c == nil {
		return m, nil
	}
	m.budget.Store(int64(c.Budget))
	own := *c
	own.Seen, own.Panicked = m.nameAhead, func(err error) { m.panicked("fetch", err) }
	own.NoRoom = m.noRoom
	m.fetch, err = fetch.New(own)
	return m, err
}

func (x *Media) panicked(where string, err error) {
	if x.Panicked != nil {
		x.Panicked(where, err)
	}
}

func (x *Media) noRoom(what string) {
	if x.NoRoom != nil {
		x.NoRoom(what)
	}
}

// Change applies new settings as fetch.Fetcher.Change does, for requests that begin from now on.
func (x *Media) Change(c *fetch.Config) error {
	if err := x.fetch.Change(*c); err != nil {
		return err
	}
	x.budget.Store(int64(c.Budget))
	return nil
}

// Close stops all downloads.
func (x *Media) Close() {
	if x.fetch != nil {
		x.fetch.Close()
	}
	x.pixels.Close()
}

// Hosts lists the hosts of image URLs that failed recently.
func (x *Media) Hosts() []fetch.HostState {
	if x.fetch == nil {
		return nil
	}
	return x.fetch.Hosts()
}

// Fetched returns the fetcher's statistics; zero if nothing is fetched.
func (x *Media) Fetched() fetch.Stats {
	if x.fetch == nil {
		return fetch.Stats{}
	}
	return x.fetch.Stats()
}

// nameAhead computes the names of an image that a client named in all models, in one pass over its bytes.
func (x *Media) nameAhead(c fair.Client, f media.Facts, file []byte) {
	if f.Width == 0 {
		return // of a format that is not read
	}
	x.mu.Lock()
	all := slices.Collect(maps.Values(x.keys))
	x.mu.Unlock()
	var recipes []enginehash.Recipe
	for _, k := range all {
		if k.Ahead != nil {
			recipes = append(recipes, k.Ahead(c, f, file)...)
		}
	}
	_, _ = media.Names(x.store, media.File(file), f.ID, f.Bytes, recipes...)
}

// keysOf returns how a model's workers key blocks. Every reload of a model gets the same Keys, with all it has learned.
func (x *Media) keysOf(m *Model) (*rules.Keys, error) {
	s, facts := &m.Server, m.prompt.Facts()
	o := rules.KeysOptions{Model: s.EngineModel, Revision: s.Revision, Hasher: s.MMHasher, MediaIO: string(s.MediaIOKwargs),
		Fingerprint: s.Fingerprint,
		Class:       facts.ProcessorClass, Wrapper: facts.WrapperClass}
	o.ModelType, o.Architectures = m.prompt.Config()
	id := fmt.Sprintf("%q %q %q %+v", m.Name, s.Engine, s.EngineVersion, o)
	o.Store, o.Pixels = x.store, x.pixels
	o.Found = func(fingerprint string) {
		if x.Pinned != nil {
			x.Pinned(m.Name, fingerprint)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	k := x.keys[id]
	if k == nil {
		k = new(rules.Keys)
		if m.rules.NewKeys != nil {
			made, err := m.rules.NewKeys(o)
			if err != nil {
				return nil, err
			}
			k = &made
		}
		x.keys[id] = k
	}
	if !s.Dynamo() {
		return k, nil
	}
	rule := block.Dynamo{Eagle: s.Speculative != ""}
	if s.BlockHash == "dynamo" {
		rule.ImageToken, rule.Pads = m.prompt.ImageToken()
	}
	behind := dynamo.Keys(rule)
	return &behind, nil
}

// Medium is one image, video or audio clip of a prompt.
type Medium struct {
	Modality       string
	Offset, Length int // tokens
	Facts          media.Facts
	HasFacts       bool        // Facts are filled in
	Name           string      // the name in the engine's events
	HasName        bool        // Name is set (vLLM accepts even "" as a uuid)
	Key            uint64      // Name as it enters block hashes; without a name, an identity of our own
	Alias          uint64      // of the URL it came by, or of its content; 0: none
	Fetched        bool        // the engine fetches it itself, and its host may give it another image than us
	text           MediumText  // where it is in the body
	edits          []body.Edit // that hand it over to the worker (see deliver)
	namePending    bool        // its name is being computed in the background
}

// MediumText is a medium's text in a request's body, and the medium's identity: that of its bytes, or else of the text.
type MediumText struct {
	at    uintptr // of its first byte, while the body is there; 0: it is not in the body
	bytes int
	ID    mmhash.ContentID
}

// MediumTexts are those of the media in one body.
type MediumTexts []MediumText

// Sort makes the texts ready for At.
func (l MediumTexts) Sort() {
	slices.SortStableFunc(l, func(a, b MediumText) int { return cmp.Compare(a.at, b.at) })
}

// At returns the medium whose text begins with the first of some slices of the body, and how many of them it is; nil: none does.
func (l MediumTexts) At(pieces [][]byte) (t *MediumText, n int) {
	if len(l) == 0 || len(pieces[0]) == 0 {
		return nil, 0
	}
	at := addressOf(pieces[0])
	i, found := slices.BinarySearchFunc(l, at, func(t MediumText, at uintptr) int { return cmp.Compare(t.at, at) })
	if !found {
		return nil, 0
	}
	for bytes := 0; bytes < l[i].bytes && n < len(pieces); n++ {
		bytes += len(pieces[n])
	}
	return &l[i], n
}

func addressOf(piece []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(piece))) }

// textOf returns where a medium is in the body, whose identity is known.
func (q *mediaReader) textOf(in *prompt.MediaPart, id mmhash.ContentID) (t MediumText) {
	pieces := q.body.Raw(in.Source)
	if len(pieces) == 0 || len(pieces[0]) == 0 {
		return t
	}
	t.at, t.ID = addressOf(pieces[0]), id
	for _, p := range pieces {
		t.bytes += len(p)
	}
	return t
}

// firstSeen caches the first image under each name, for servers that trust clients' uuids: the engine keeps that image's
// features and token count for whatever comes later under the same name (vLLM 0.32, processor cache).
type firstSeen = lru.Cache[string, media.Facts]

const maxFirst = 1 << 14 // names; the least recently used are evicted

func newFirstSeen() *firstSeen {
	c, _ := lru.New[string, media.Facts](maxFirst) // fails for a size below 1
	return c
}
