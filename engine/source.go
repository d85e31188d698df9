package engine

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/media/header"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/prompt"
)

// A medium's bytes are in the body, behind a URL, or in a local file.

// isRemote reports whether an image's bytes are fetched or read from a file. Media of other kinds are not read.
func (q *mediaReader) isRemote(in *prompt.MediaPart) bool {
	scheme := schemeOf(in.Raw(q.body))
	return in.Modality == "image" && (scheme == "http" && q.Media.fetch != nil || scheme == "file" || scheme == "" && q.rules.TakesPaths)
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

// identify locates an image's bytes and fills in its facts. If they cannot be known, why is the reason.
func (q *mediaReader) identify(ctx context.Context, md *Medium, m *rules.Naming) (why string, err error) {
	isPath := m.Scheme == "" && q.rules.TakesPaths
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
	case m.Scheme == "data":
		m.Source = media.DataURL(m.In.Raw(q.body))
		md.Facts, err = media.Identify(m.Source)
		if md.Facts.Bytes > 0 {
			md.text = q.textOf(m.In, md.Facts.ID)
		}
	default:
		err = &Refused{Status: 400, Reason: "media is neither a data URL nor an http or file URL"}
	}
	if why != "" || errors.As(err, new(*Refused)) {
		md.Key = md.Alias
		if md.Facts.Bytes > 0 { // a worker may hold the image that the URL showed last
			md.Key = q.hashKey.Name(md.Facts.ID.String())
			last := *m
			last.Source = media.Source{}
			q.callByName(md, &last)
			md.Name, md.HasName = "", false
		}
		return why, err
	}
	md.Key = q.hashKey.Name(md.Facts.ID.String())
	switch {
	case err != nil:
		return q.unread(err, "media that the engine cannot read")
	case md.Facts.Width == 0:
		return inexactFormat, nil
	}
	return "", nil
}

// unread returns why a file that is no image of a known format ends the exact part of the prompt, or the engine's refusal of it.
func (m *Model) unread(err error, reason string) (why string, _ error) {
	switch status := media.Status(err); {
	case status == 0:
		return inexactFormat, nil
	case m.rules.TakesEmbeddingFiles && header.KindOf(err) == header.NotAnImage:
		return inexactEmbeds, nil
	default:
		return "", &Refused{Status: status, Reason: reason}
	}
}

// other reads a medium that is no image. Its prompt is read exactly up to it only, so it needs no more than an identity for affinity.
func (q *mediaReader) other(md *Medium, m *rules.Naming) (why string, err error) {
	pieces := m.In.Raw(q.body)
	id := mmhash.TextID(pieces)
	md.Key, md.text = q.hashKey.Name(id.String()), q.textOf(m.In, id)
	switch link, _ := q.body.String(m.In.Source); {
	case m.Scheme == "http":
		err = q.allows(link)
	case m.Scheme == "file" && q.Server.AllowedLocalMediaPath == "" && q.rules.RefusesLocal:
		err = errNoLocal
	}
	return inexactOther, err
}

// Pixels returns how many pixels an inline image has; 0: they are not known.
func Pixels(text [][]byte) int { return media.Pixels(text) }

// allows returns the engine's refusal of a URL outside of allowed_media_domains.
func (m *Model) allows(link string) error {
	if len(m.Server.AllowedMediaDomains) == 0 {
		return nil
	}
	if u, err := url.Parse(link); err != nil || !slices.Contains(m.Server.AllowedMediaDomains, u.Hostname()) {
		return &Refused{Status: 400, Reason: "media URL outside of allowed_media_domains"}
	}
	return nil
}

// fetch identifies an image by its URL, within the caller's budget. If why is set (the reason it failed), md.Facts are those of
// the image that the URL showed last, if any.
func (m *Model) fetch(ctx context.Context, c fair.Client, link string, md *Medium) (src media.Source, why string, err error) {
	if err := m.allows(link); err != nil {
		return src, "", err
	}
	md.Alias = m.Media.Secret.Key().Link(link)
	fetcher := m.Media.fetch
	if fetcher == nil {
		return src, inexactNoFetch, nil
	}
	if alias, ok := fetcher.Alias(link); ok {
		md.Alias = alias
	}
	md.Facts, err = fetcher.Get(ctx, c, link)
	if err == nil {
		f := md.Facts
		return media.FromLoader(func() []byte { file, _ := fetcher.Bytes(f.ID); return file }), "", nil
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
	case e.Kind == fetch.NotAnImage:
		why, err = m.unread(err, "media URL whose image cannot be read")
		return src, why, err
	case e.Kind == fetch.Status && e.Status >= 400 && e.Status < 500:
		return src, "", &Refused{Status: 422, Reason: "media URL that its host refuses"}
	}
	return src, inexactFetchFailed, nil
}
