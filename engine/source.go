package engine

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/fetch"
	"github.com/sightline-router/sightline/prompt"
)

// A medium's bytes are in the body, behind a URL, or in a local file.

// isRemote reports whether a medium's bytes are not in the body.
func isRemote(s *body.Skeleton, in *prompt.Medium) bool {
	scheme := schemeOf(in.Raw(s))
	return scheme == "http" || scheme == "file" || scheme == "" && in.Modality == "image"
}

// schemeOf tells data, http and file URLs from everything else by their first characters.
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

// identify locates a medium's bytes and fills in its facts. If they cannot be known, why is the reason.
func (q *mediaReader) identify(ctx context.Context, md *Medium, m *rules.Medium) (why string, err error) {
	pieces := m.In.Raw(q.body)
	isPath := m.Scheme == "" && md.Modality == "image" && q.rules.TakesPaths
	switch {
	case m.Scheme == "http" || m.Scheme == "file" || isPath:
		link, ok := q.body.String(m.In.Source)
		if !ok {
			return "", &Refused{Status: 400, Reason: "media URL is not valid text"}
		}
		if m.Scheme == "http" {
			m.Source, why, err = q.fetch(ctx, q.client, link, md)
		} else {
			m.Source, why, err = q.local(ctx, q.client, link, md)
		}
	case m.Scheme == "data" && md.Modality == "video":
		m.Source = mmhash.VideoURL(pieces)
		md.Facts, err = q.facts(m.Source, md.Modality)
	case m.Scheme == "data":
		m.Source = mmhash.DataURL(pieces)
		md.Facts, err = q.facts(m.Source, md.Modality)
	case md.Modality == "audio", md.Modality == "image_embeds", md.Modality == "audio_embeds":
		m.Source = mmhash.Base64(pieces)
		md.Facts, err = q.facts(m.Source, md.Modality)
	default:
		err = &Refused{Status: 400, Reason: "media is neither a data URL nor an http or file URL"}
	}
	if why != "" || errors.As(err, new(*Refused)) {
		md.Key = md.Alias
		if md.Facts.Bytes > 0 { // a worker may hold the picture that the URL showed last
			md.Key = q.hashKey.Name(md.Facts.ID.String())
			last := *m
			last.Source = mmhash.Source{}
			q.callByName(md, &last)
			md.Name, md.HasName = "", false
		}
		return why, err
	}
	if err != nil && (md.Modality == "image" || errors.As(err, new(*mmhash.Refusal))) {
		if status := mmhash.Status(err); status != 0 {
			return "", &Refused{Status: status, Reason: "media that the engine cannot read"}
		}
		why = inexactFormat
	}
	md.Key = q.hashKey.Name(md.Facts.ID.String())
	if why == "" && strings.HasSuffix(md.Modality, "_embeds") && md.Facts.Tokens == 0 {
		why = inexactEmbeds
	}
	return why, nil
}

// facts reads a medium's bytes. Some engines accept files of embeddings in place of pictures.
func (m *Model) facts(src mmhash.Source, modality string) (mmhash.Facts, error) {
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

// fetch identifies a picture by its URL, within the caller's budget. If why is set (the reason it failed), md.Facts are those of
// the picture that the URL showed last, if any.
func (m *Model) fetch(ctx context.Context, c fair.Client, link string, md *Medium) (src mmhash.Source, why string, err error) {
	if len(m.Server.AllowedMediaDomains) > 0 {
		u, err := url.Parse(link)
		if err != nil || !slices.Contains(m.Server.AllowedMediaDomains, u.Hostname()) {
			return src, "", &Refused{Status: 400, Reason: "media URL outside of allowed_media_domains"}
		}
	}
	md.Alias = m.Media.Secret.Key().Link(link)
	fetcher := m.Media.fetch
	if fetcher == nil {
		return src, inexactNoFetch, nil
	}
	if alias, ok := fetcher.Alias(link); ok {
		md.Alias = alias
	}
	unreadable := &Refused{Status: 400, Reason: "media URL whose picture cannot be read"}
	md.Facts, err = fetcher.Get(ctx, c, link)
	if err == nil {
		f := md.Facts
		if md.Modality == "image" && (f.IsVideo() || f.Format == mmhash.Stream || f.Tokens > 0 && !m.rules.TakesEmbeddingFiles) {
			return src, "", unreadable
		}
		return mmhash.FromLoader(func() []byte { file, _ := fetcher.Bytes(f.ID); return file }), "", nil
	}
	md.Facts, _ = fetcher.Last(link)
	var e *fetch.Error
	if !errors.As(err, &e) {
		return src, inexactFetchFailed, nil
	}
	switch {
	case e.Kind == fetch.Budget:
		return src, inexactBudget, nil
	case e.Kind == fetch.Refused:
		return src, inexactForbidden, nil
	case e.Kind == fetch.NotAnImage && md.Modality == "image" && mmhash.Status(err) == 0:
		return src, inexactFormat, nil
	case e.Kind == fetch.NotAnImage && md.Modality == "image":
		return src, "", unreadable
	case e.Kind == fetch.Status && e.Status >= 400 && e.Status < 500:
		return src, "", &Refused{Status: 422, Reason: "media URL that its host refuses"}
	}
	return src, inexactFetchFailed, nil
}
