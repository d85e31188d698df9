package engine

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/mmhash/enginehash"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Reasons for which a medium or its name is not known, so that the prompt is not exact. They are counted under these names.
const (
	inexactNoFetch     = "image URL, and fetching is off"
	inexactBudget      = "image not here within the time budget"
	inexactFetchFailed = "image could not be fetched"
	inexactForbidden   = "image URL points where we do not fetch"
	inexactFormat      = "image format is not read"
	inexactEmbeds      = "embeddings in the place of an image"
	inexactOther       = "media other than images"
	inexactUUID        = "a uuid that is a list or an object"
	inexactPanic       = "media that could not be read: an internal error"
	inexactTime        = "no time left to read all images"
	inexactLater       = "media name not computed yet: pixels are decoded beside the requests"
	inexactUnnamed     = "media name not computable"
)

// maxParallel bounds the media of one request that are read at a time.
const maxParallel = 512

// mediaReader resolves the media of one request: identify (source.go), deliver (delivery.go), name.
type mediaReader struct {
	*Model
	endpoint, adapter string
	client            fair.Client
	body              *body.Skeleton
	draft             *prompt.Draft
	options           enginehash.Item // common to all media of the request
	hashKey           *block.Key
}

// resolve finds the size, identity and name of each medium in list. A medium that cannot be known now ends the exact part of the
// prompt, and why is the reason. The error is a *Refused.
func (q *mediaReader) resolve(ctx context.Context, list []prompt.MediaPart) (found []Medium, why string, err error) {
	if len(list) == 0 {
		return nil, "", nil
	}
	q.options.ProcessorKwargs, err = enginehash.ParseFields([]byte(q.draft.MMKwargs))
	if err != nil {
		return nil, "", &Refused{Status: 400, Reason: "mm_processor_kwargs cannot be read"}
	}
	q.options.MediaIO, err = enginehash.ParseFields([]byte(q.draft.MediaIOKwargs))
	if err != nil {
		return nil, "", &Refused{Status: 400, Reason: "media_io_kwargs cannot be read"}
	}
	q.options.Images = 0 // of this prompt; a body may have several
	for i := range list {
		if list[i].Modality == "image" {
			q.options.Images++
		}
	}
	found = make([]Medium, len(list))
	whys, errs := make([]string, len(list)), make([]error, len(list))
	var remote []int // media that take time are read beside each other
	for i := range list {
		if len(list) > 1 && q.isRemote(&list[i]) {
			remote = append(remote, i)
			continue
		}
		found[i], whys[i], errs[i] = q.readGuarded(ctx, &list[i])
		if errs[i] != nil {
			return nil, "", errs[i]
		}
	}
	var all sync.WaitGroup
	var next atomic.Int64
	for range min(len(remote), maxParallel) {
		all.Go(func() {
			for n := next.Add(1); n <= int64(len(remote)); n = next.Add(1) {
				i := remote[n-1]
				found[i], whys[i], errs[i] = q.readGuarded(ctx, &list[i])
			}
		})
	}
	all.Wait()
	if err := cmp.Or(errs...); err != nil {
		return nil, "", err
	}
	return found, cmp.Or(whys...), nil
}

// readGuarded reads one medium unless the request's time is over. A panic costs only that medium.
func (q *mediaReader) readGuarded(ctx context.Context, in *prompt.MediaPart) (md Medium, why string, err error) {
	if q.draft.Over() {
		return Medium{Modality: in.Modality}, inexactTime, nil
	}
	if bad := guard.Call(func() error { md, why, err = q.read(ctx, in); return nil }); bad != nil {
		q.Media.panicked("media", bad)
		return Medium{Modality: in.Modality}, inexactPanic, nil
	}
	return md, why, err
}

// read resolves one medium. If it cannot be known, why is the reason.
func (q *mediaReader) read(ctx context.Context, in *prompt.MediaPart) (md Medium, why string, err error) {
	m := rules.Naming{Item: q.options, Client: q.client, In: in, Body: q.body, Scheme: schemeOf(in.Raw(q.body)), Inline: q.Media.DecodeInline}
	md.Modality = in.Modality
	if in.Modality != "image" {
		why, err = q.other(&md, &m)
		return md, why, err
	}
	byClient := in.HasUUID && q.Server.TrustUUID
	if byClient {
		if in.OpaqueUUID {
			return md, inexactUUID, nil
		}
		m.UUID, m.HasUUID = strings.Clone(in.UUID), true // cloned: it may become the name, which outlives the body
	}
	if in.Source.Type != gjson.String && in.Prefix == "" {
		return md, "", q.fromUUID(&md, &m)
	}
	why, err = q.identify(ctx, &md, &m)
	if err != nil || why != "" && why != inexactFormat {
		return md, why, err
	}
	q.deliver(&md, &m)
	if why != "" { // the bytes are known, and nothing about them
		return md, why, nil
	}
	md.HasFacts = true
	md.Fetched = m.Scheme == "http" && len(md.edits) == 0
	return md, "", q.name(&md, &m, byClient)
}

// fromUUID resolves a medium that is only a uuid: the engine has the image in its cache, or answers with an error.
func (q *mediaReader) fromUUID(md *Medium, m *rules.Naming) error {
	ok := false
	q.callByName(md, m)
	if m.HasUUID && md.HasName {
		md.Facts, ok = q.first.Get(md.Name)
	}
	if !ok || q.Server.MMProcessorCacheGB == 0 {
		return &Refused{Status: 400, Reason: "media without data, under a uuid that the engine has not seen"}
	}
	md.HasFacts = true
	return nil
}

// name sets the name by which events call the medium.
func (q *mediaReader) name(md *Medium, m *rules.Naming, byClient bool) error {
	q.callByName(md, m)
	md.namePending = m.Later
	if q.Server.TowerLoRA && q.adapter == "" && md.HasName && md.Name == "" {
		return &Refused{Status: 500, Reason: "an empty uuid, with --enable-tower-connector-lora"}
	}
	if byClient && q.Server.MMProcessorCacheGB > 0 { // under one name the engine keeps the features of the first image
		if first, seen, _ := q.first.PeekOrAdd(md.Name, md.Facts); seen {
			md.Facts = first
		}
	}
	return nil
}

// callByName asks for a computed name. If the engine's key does not follow from the name, the content's own key becomes the alias,
// so that requests for the same content under another key still count for affinity.
func (q *mediaReader) callByName(md *Medium, m *rules.Naming) {
	if q.keys.Name == nil {
		return
	}
	m.ID, m.Mode, m.Bytes, m.Pixels, m.Edited = md.Facts.ID, md.Facts.Mode, md.Facts.Bytes, md.Facts.Pixels(), len(md.edits) > 0
	m.Transparent, m.Rotated = md.Facts.Transparent, md.Facts.Orientation > 1
	q.keys.Name(m)
	switch md.Name, md.HasName = m.Name, m.Named; {
	case !m.Named:
	case m.Key != 0:
		md.Alias, md.Key = md.Key, m.Key
	default:
		md.Key = q.key(m.Name)
	}
}

// key returns a name as it enters block hashes. If adapters change the vision tower, vLLM prefixes the name there with the
// adapter's, though not in what its API shows.
func (q *mediaReader) key(name string) uint64 {
	if q.Server.TowerLoRA && q.adapter != "" {
		name = q.adapter + ":" + name
	}
	if q.keys.InEvents != nil {
		name = q.keys.InEvents(name)
	}
	return q.hashKey.Name(name)
}

// unnamed returns the reason why a medium has no name.
func (md *Medium) unnamed() string {
	if md.namePending {
		return inexactLater
	}
	return inexactUnnamed
}

// sizes converts the media for the placeholder rules.
func sizes(found []Medium, turn bool) []vision.Media {
	out := make([]vision.Media, len(found))
	for i := range found {
		md := &found[i]
		out[i].Modality = strings.TrimSuffix(md.Modality, "_embeds")
		if !md.HasFacts { // any size will do: the prompt is cut before it
			out[i].Width, out[i].Height = 448, 448
			continue
		}
		out[i].Width, out[i].Height = md.Facts.Width, md.Facts.Height
		if turn {
			out[i].Width, out[i].Height = md.Facts.UprightSize()
			out[i].SidesSwapped = md.Facts.Orientation >= 5 && md.Facts.Orientation <= 8
		}
	}
	return out
}
