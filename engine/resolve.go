package engine

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/mmhash/fetch"
	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/mmhash/relay"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Media is what all models share: the names of pictures that were seen, and the way to fetch others. Safe for concurrent
// use.
type Media struct {
	store *mmhash.Store
	fetch *fetch.Fetcher // nil: URLs are never fetched
	// budget is how long a request waits for pictures that are not in its body, in all; 0: as long as it takes.
	budget time.Duration
	locals locals
	mu     sync.Mutex
	rules  map[rule]*vllm.Names      // of the models, to name a picture while its bytes are at hand
	sglang map[string]*sglang.Finder // of SGLang's models, likewise

	// Pinned, if set before models are loaded, is told when events show by which fingerprint a model's SGLang workers name
	// pictures. It must return at once.
	Pinned func(model, fingerprint string)

	// Panicked, if set before models are loaded, is told where reading media panicked, a fault of ours: it costs that medium,
	// or the name of it. It must return at once.
	Panicked func(where string, err error)

	learned learned

	pixels *trtllm.PixelNames    // nil: no model needs them
	trt    map[trtllm.Names]bool // the models' rules, to name a picture while its bytes are at hand

	// Patient has names that take decoding computed at once: for tools. A request would wait for it.
	Patient bool

	// Relay, if set before requests come, serves fetched pictures to the workers; with RelayDataURLs also those that came
	// in a body.
	Relay         *relay.Relay
	RelayDataURLs bool
}

// rule is what of a Server decides names of pictures. Models that agree in it, and a model read again, share one.
type rule struct {
	version, model, hasher string
	mediaIO                Kwargs
}

// knownNames bounds the names that are remembered: about 300 bytes each.
const knownNames = 1 << 18

// NewMedia makes the shared part. With a nil c nothing is ever fetched. Close it.
func NewMedia(c *fetch.Config) (*Media, error) {
	m := &Media{locals: newLocals()}
	var err error
	if m.store, err = mmhash.NewStore(knownNames); err != nil || c == nil {
		return m, err
	}
	m.budget = c.Budget
	own := *c
	own.Seen, own.Panicked = m.named, func(err error) { m.panicked("fetch", err) }
	m.fetch, err = fetch.New(own)
	return m, err
}

func (x *Media) panicked(where string, err error) {
	if x.Panicked != nil {
		x.Panicked(where, err)
	}
}

// Close ends downloads.
func (x *Media) Close() {
	if x.fetch != nil {
		x.fetch.Close()
	}
	if x.pixels != nil {
		x.pixels.Close()
	}
	x.locals.known.StopAllGoroutines()
	x.store.Close()
}

// Hosts lists the hosts of picture URLs that failed lately.
func (x *Media) Hosts() []fetch.HostState {
	if x.fetch == nil {
		return nil
	}
	return x.fetch.Hosts()
}

// Fetched is what the fetcher did; zero if nothing is fetched.
func (x *Media) Fetched() fetch.Stats {
	if x.fetch == nil {
		return fetch.Stats{}
	}
	return x.fetch.Stats()
}

// named computes what a downloaded picture is called in every model, in one pass over its bytes.
func (x *Media) named(f mmhash.Facts, file []byte) {
	x.mu.Lock()
	rules := slices.Collect(maps.Values(x.rules))
	var recipes []name.Recipe
	if len(x.sglang) > 0 {
		recipes = append(recipes, sglang.FileDigest())
	}
	x.mu.Unlock()
	if f.IsVideo() || f.Tokens > 0 || f.Format == mmhash.Stream {
		return // the names of a video depend on the frames that a request takes; those of embeddings are learned
	}
	for _, v := range rules {
		if r, err := v.Recipe(name.Item{Modality: "image", Mode: f.Mode, Bytes: f.Bytes}); err == nil && !r.Ready {
			recipes = append(recipes, r)
		}
	}
	_, _ = x.store.Names(mmhash.File(file), f.ID, f.Bytes, recipes...)
	x.wantTRTLLM(f, file)
}

// Medium is one picture, video or audio clip of a prompt.
type Medium struct {
	Modality       string
	Offset, Length int // tokens
	Facts          mmhash.Facts
	Known          bool        // Facts could be had
	Name           string      // by which the engine's events call it
	Named          bool        // the name could be computed (vLLM takes even "" as a uuid)
	Key            uint64      // Name as it enters block hashes; without a name, an identity of ours
	Alias          uint64      // of the URL it came by; 0: none
	edits          []body.Edit // that hand it over
	waits          bool        // its name is being computed
	ident          uint64      // by which its name is learned; 0: cannot be
	learned        bool        // Name was

	clip *vision.Clip // what the engine takes of a video, if that is known
}

// namer computes the engine's names.
type namer struct {
	vllm   *vllm.Names
	trt    *trtllm.Names
	sglang *sglang.Finder // nil: another engine, or a family that it names by pixels
}

func (x *Media) namer(s Server) (n namer, err error) {
	switch s.Rules().Names {
	case rules.ByFile:
	case rules.ByPixels:
		return x.namerTRTLLM(s)
	default:
		return n, nil // SGLang's names are learned from events
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	key := rule{s.EngineVersion, s.EngineModel, s.MMHasher, s.MediaIOKwargs}
	if v := x.rules[key]; v != nil {
		return namer{vllm: v}, nil
	}
	v, err := vllm.NewNames(s.EngineVersion, s.EngineModel, s.MMHasher, string(s.MediaIOKwargs))
	if err != nil {
		return n, err
	}
	if x.rules == nil {
		x.rules = make(map[rule]*vllm.Names)
	}
	x.rules[key] = v
	return namer{vllm: v}, nil
}

// Words of ours for what kept a medium from being known; they are counted.
const (
	whyNoFetch     = "image URL, and fetching is off"
	whyBudget      = "image not here within the time budget"
	whyFetchFailed = "image could not be fetched"
	whyForbidden   = "image URL points where we do not fetch"
	whyFormat      = "image format is not read"
	whyEmbeds      = "embeddings in a form that is not read"
	whyUUID        = "a uuid that is a list or an object"
	whyPanic       = "media that could not be read: an internal error"
	whyTime        = "no time left to read all pictures"
)

// resolve finds size, identity and name of each medium. A medium that cannot be known now ends what is exact: it and
// those behind it stay unknown, why says the reason. The error is a *Refused.
func (m *Model) resolve(ctx context.Context, endpoint, lora string, body *body.Skeleton, d *prompt.Draft, list []prompt.Medium) (found []Medium, why string, err error) {
	if len(list) == 0 {
		return nil, "", nil
	}
	item := name.Item{}
	if item.ProcessorKwargs, err = name.ParseFields([]byte(d.MMKwargs)); err != nil {
		return nil, "", &Refused{Status: 400, Reason: "mm_processor_kwargs cannot be read"}
	}
	if item.MediaIO, err = name.ParseFields([]byte(d.MediaIOKwargs)); err != nil {
		return nil, "", &Refused{Status: 400, Reason: "media_io_kwargs cannot be read"}
	}
	found = make([]Medium, len(list))
	whys, errs := make([]string, len(list)), make([]error, len(list))
	var remote sync.WaitGroup // they wait side by side
	for i := range list {
		one := func() {
			if d.Over() {
				found[i].Modality, whys[i] = list[i].Modality, whyTime
				return
			}
			if err := guard.Call(func() error {
				found[i], whys[i], errs[i] = m.one(ctx, endpoint, lora, body, d, &list[i], item)
				return nil
			}); err != nil {
				found[i].Modality, whys[i] = list[i].Modality, whyPanic
				m.Media.panicked("media", err)
			}
		}
		if len(list) > 1 && elsewhere(body, &list[i]) {
			remote.Go(one)
		} else {
			one()
		}
	}
	remote.Wait()
	for i := range list {
		if errs[i] != nil {
			return nil, "", errs[i]
		}
		if why == "" {
			why = whys[i]
		}
	}
	return found, why, nil
}

func (m *Model) one(ctx context.Context, endpoint, lora string, body *body.Skeleton, d *prompt.Draft, in *prompt.Medium, item name.Item) (md Medium, why string, err error) {
	md.Modality = in.Modality
	if in.HasUUID && m.Server.TrustUUID {
		if in.OpaqueUUID {
			return md, whyUUID, nil
		}
		item.UUID, item.HasUUID = strings.Clone(in.UUID), true // it may be the name, which is kept
	}
	if in.Source.Type != gjson.String && in.Prefix == "" { // a uuid alone: the engine has the picture, or answers with an error
		var ok bool
		if md.Name, md.Named = m.nameOf(&md, mmhash.Source{}, item); item.HasUUID && md.Named {
			md.Facts, ok = m.first.get(md.Name)
		}
		if !ok || m.Server.MMProcessorCacheGB == 0 {
			return md, "", &Refused{Status: 400, Reason: "media without data, under a uuid that the engine has not seen"}
		}
		md.Known, md.Key = true, m.key(md.Name, lora)
		return md, "", nil
	}
	pieces := in.Raw(body)
	var src mmhash.Source
	switch scheme := schemeOf(pieces); {
	case scheme == "data":
		if src = mmhash.DataURL(pieces); in.Modality == "video" {
			src = mmhash.VideoURL(pieces)
		}
		md.Facts, err = m.identify(src, in.Modality)
	case scheme == "http":
		text, ok := body.String(in.Source)
		if !ok {
			return md, "", &Refused{Status: 400, Reason: "media URL is no valid text"}
		}
		if src, why, err = m.get(ctx, text, &md); why != "" || err != nil {
			if md.Key = md.Alias; md.Facts.Bytes > 0 { // what it showed last may lie with a worker
				md.Key = block.NameHash(md.Facts.ID.String())
				if n, ok := m.nameOf(&md, mmhash.Source{}, item); ok {
					md.Key = m.key(n, lora)
				}
			}
			return md, why, err
		}
	case scheme == "file", scheme == "" && in.Modality == "image" && m.rules.TakesPaths:
		text, ok := body.String(in.Source)
		if !ok {
			return md, "", &Refused{Status: 400, Reason: "media URL is no valid text"}
		}
		if src, why, err = m.local(ctx, text, &md); why != "" || errors.As(err, new(*Refused)) {
			md.Key = md.Alias
			return md, why, err
		}
	case in.Modality == "audio", in.Modality == "image_embeds", in.Modality == "audio_embeds":
		src = mmhash.Base64(pieces)
		md.Facts, err = m.identify(src, in.Modality)
	default:
		return md, "", &Refused{Status: 400, Reason: "media is neither a data URL nor an http or file URL"}
	}
	if err != nil && (in.Modality == "image" || errors.As(err, new(*mmhash.Refusal))) {
		if status := mmhash.Status(err); status != 0 {
			return md, "", &Refused{Status: status, Reason: "media that the engine cannot read"}
		}
		md.Key = block.NameHash(md.Facts.ID.String())
		return md, whyFormat, nil
	}
	md.Key = block.NameHash(md.Facts.ID.String())
	if strings.HasSuffix(in.Modality, "_embeds") && md.Facts.Tokens == 0 {
		return md, whyEmbeds, nil
	}
	md.Known = true
	if err := m.sample(&md, &item); err != nil {
		return md, "", err
	}
	named := item.HasUUID
	m.handOver(&md, endpoint, body, in, src, &item)
	if m.Server.Dynamo() {
		m.dynamoName(&md, body, in, item)
	} else if m.rules.Names == rules.ByProcessor {
		md.Name, md.Named = m.nameSGLang(&md, src, body, in)
	} else if md.Name, md.Named = m.nameOf(&md, src, item); (!md.Named || m.names.trt != nil) && !item.HasUUID {
		md.ident = m.ident(&md, d.MMKwargs, d.MediaIOKwargs)
		if name, known := m.Media.learned.name(md.ident); known {
			md.Name, md.Named, md.learned = name, true, true
		}
	}
	if md.Named && !m.Server.Dynamo() {
		md.Key = m.key(md.Name, lora)
	}
	if m.Server.TowerLoRA && lora == "" && md.Named && md.Name == "" {
		return md, "", &Refused{Status: 500, Reason: "an empty uuid, with --enable-tower-connector-lora"}
	}
	if named && m.Server.MMProcessorCacheGB > 0 { // by the client: the engine keeps the features of the first picture under a name
		md.Facts = m.first.put(md.Name, md.Facts)
	}
	return md, "", nil
}

// key is a name as it enters block hashes. Where adapters change the vision tower vLLM puts the adapter's name before it
// there, though not in what its API shows.
func (m *Model) key(name, lora string) uint64 {
	if m.Server.TowerLoRA && lora != "" {
		name = lora + ":" + name
	}
	return block.NameHash(name)
}

// nameOf is the engine's name of a medium, if it can be computed.
func (m *Model) nameOf(md *Medium, src mmhash.Source, item name.Item) (string, bool) {
	if m.names.trt != nil {
		return m.nameTRTLLM(md, src, item)
	}
	if m.names.vllm == nil {
		return "", false
	}
	item.Modality, item.Mode, item.Bytes = md.Modality, md.Facts.Mode, md.Facts.Bytes
	r, err := m.names.vllm.Recipe(item)
	switch {
	case err != nil:
		return "", false
	case r.Ready:
		return r.Known, true
	}
	names, err := m.Media.store.Names(src, md.Facts.ID, md.Facts.Bytes, r)
	if err != nil {
		return "", false
	}
	return names[0], true
}

// identify reads a medium's bytes. Some engines take files of embeddings where they take pictures.
func (m *Model) identify(src mmhash.Source, modality string) (mmhash.Facts, error) {
	switch modality {
	case "video":
		return mmhash.IdentifyVideo(src)
	case "image_embeds":
		return mmhash.IdentifyEmbeddings(src)
	}
	f, err := mmhash.Identify(src)
	if err != nil && modality == "image" && m.rules.TakesEmbeddingFiles {
		if embeds, bad := mmhash.IdentifyEmbeddings(src); bad == nil {
			return embeds, nil
		}
	}
	return f, err
}

// elsewhere: a medium's bytes are not in the body.
func elsewhere(body *body.Skeleton, in *prompt.Medium) bool {
	scheme := schemeOf(in.Raw(body))
	return scheme == "http" || scheme == "file" || scheme == "" && in.Modality == "image"
}

// schemeOf tells data, http and file URLs from all else by their first characters.
func schemeOf(pieces [][]byte) string {
	var head [8]byte
	n := 0
	for _, p := range pieces {
		n += copy(head[n:], p)
	}
	text := strings.ToLower(string(head[:n]))
	switch {
	case strings.HasPrefix(text, "data:"):
		return "data"
	case strings.HasPrefix(text, "http:"), strings.HasPrefix(text, "https:"):
		return "http"
	case strings.HasPrefix(text, "file:"):
		return "file"
	}
	return ""
}

// get learns of a picture by its URL, within the caller's budget. why says what kept it from being known; then md.Facts
// are those of the picture that the URL showed last, if there are any.
func (m *Model) get(ctx context.Context, rawURL string, md *Medium) (src mmhash.Source, why string, err error) {
	if len(m.Server.AllowedMediaDomains) > 0 {
		u, err := url.Parse(rawURL)
		if err != nil || !slices.Contains(m.Server.AllowedMediaDomains, u.Hostname()) {
			return src, "", &Refused{Status: 400, Reason: "media URL outside of allowed_media_domains"}
		}
	}
	md.Alias = xxh3.HashString(rawURL)
	if m.Media.fetch == nil {
		return src, whyNoFetch, nil
	}
	if alias, ok := m.Media.fetch.Alias(rawURL); ok {
		md.Alias = alias
	}
	md.Facts, err = m.Media.fetch.Get(ctx, rawURL)
	if err == nil && md.Modality == "image" && (md.Facts.IsVideo() || md.Facts.Format == mmhash.Stream || md.Facts.Tokens > 0 && !m.rules.TakesEmbeddingFiles) {
		return src, "", &Refused{Status: 400, Reason: "media URL without a readable picture"}
	}
	if err == nil {
		return mmhash.Stored(func() []byte { file, _ := m.Media.fetch.Bytes(md.Facts.ID); return file }), "", nil
	}
	md.Facts, _ = m.Media.fetch.Last(rawURL)
	var e *fetch.Error
	if !errors.As(err, &e) {
		return src, whyFetchFailed, nil
	}
	switch {
	case e.Kind == fetch.Budget:
		return src, whyBudget, nil
	case e.Kind == fetch.Refused:
		return src, whyForbidden, nil
	case e.Kind == fetch.NotAnImage && md.Modality == "image" && mmhash.Status(err) == 0:
		return src, whyFormat, nil
	case e.Kind == fetch.NotAnImage && md.Modality == "image":
		return src, "", &Refused{Status: 400, Reason: "media URL without a readable picture"}
	case e.Kind == fetch.Status && e.Status >= 400 && e.Status < 500:
		return src, "", &Refused{Status: 422, Reason: "media URL that its host refuses"}
	}
	return src, whyFetchFailed, nil
}

// sizes gives the media as the placeholder rules read them.
func sizes(found []Medium, turn bool) []vision.Media {
	out := make([]vision.Media, len(found))
	for i := range found {
		md := &found[i]
		out[i].Modality = strings.TrimSuffix(md.Modality, "_embeds")
		if !md.Known { // any size: the prompt is cut before it
			out[i].Width, out[i].Height = 448, 448
			continue
		}
		out[i].Width, out[i].Height, out[i].Clip = md.Facts.Width, md.Facts.Height, md.clip
		out[i].Tokens = md.Facts.Tokens
		if turn {
			out[i].Width, out[i].Height = md.Facts.Turned()
		}
	}
	return out
}
