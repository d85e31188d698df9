package sim

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab/vllmid"
)

// maxMedia bounds a fetched file.
const maxMedia = 64 << 20

// nameMedia fills in the identifiers that prompts lack, from the request's own parts.
func (w *Worker) nameMedia(ctx context.Context, body gjson.Result, prompts []Prompt) error {
	missing := false
	for _, p := range prompts {
		for i := range p.Media {
			setDefault(&p.Media[i].Modality, "image")
			missing = missing || p.Media[i].Identifier == ""
		}
	}
	if missing {
		names, err := w.names(ctx, body)
		if err != nil {
			return err
		}
		for _, p := range prompts {
			seen := map[string]int{}
			for i := range p.Media {
				m := &p.Media[i]
				k := seen[m.Modality]
				seen[m.Modality]++
				if m.Identifier != "" {
					continue
				}
				if k >= len(names[m.Modality]) {
					return fmt.Errorf("the prompt has more than the request's %d parts of kind %s", len(names[m.Modality]), m.Modality)
				}
				m.Identifier = names[m.Modality][k]
			}
		}
	}
	w.mediaMu.Lock()
	defer w.mediaMu.Unlock()
	for _, p := range prompts {
		for _, m := range p.Media {
			w.mediaAsked++
			if w.processor.use(m.Identifier, 1) {
				w.mediaHit++
			}
		}
	}
	return nil
}

// names gives the identifiers of a chat request's media parts, by modality, in request order.
func (w *Worker) names(ctx context.Context, body gjson.Result) (map[string][]string, error) {
	kw := vllmid.Kwargs{Processor: body.Get("mm_processor_kwargs"), MediaIO: body.Get("media_io_kwargs")}
	names := map[string][]string{}
	var err error
	body.Get("messages").ForEach(func(_, message gjson.Result) bool {
		message.Get("content").ForEach(func(_, part gjson.Result) bool {
			modality, source := mediaPart(part)
			if modality == "" {
				return true
			}
			var name string
			name, err = w.name(ctx, modality, source, part.Get("uuid"), kw, len(names[modality]))
			names[modality] = append(names[modality], name)
			return err == nil
		})
		return err == nil
	})
	return names, err
}

// mediaPart gives a content part's modality and the URL or base64 text it carries; "" for other parts.
func mediaPart(part gjson.Result) (modality string, source gjson.Result) {
	switch part.Get("type").Str {
	case "image_url":
		return "image", part.Get("image_url.url")
	case "input_image":
		return "image", part.Get("image_url")
	case "image": // Anthropic's
		s := part.Get("source")
		if s.Get("type").Str == "url" {
			return "image", s.Get("url")
		}
		return "image", gjson.Result{Type: gjson.String, Str: "data:" + s.Get("media_type").Str + ";base64," + s.Get("data").Str}
	case "video_url":
		return "video", part.Get("video_url.url")
	case "audio_url":
		return "audio", part.Get("audio_url.url")
	case "input_audio":
		return "audio", part.Get("input_audio.data")
	}
	return "", gjson.Result{}
}

func (w *Worker) name(ctx context.Context, modality string, source, uuid gjson.Result, kw vllmid.Kwargs, index int) (string, error) {
	if w.cfg.Engine != VLLM {
		raw, err := w.load(ctx, source.Str)
		switch {
		case err != nil:
			return "", err
		case modality != "image":
			return "", &Refusal{Message: "only images are simulated for " + string(w.cfg.Engine)}
		case w.cfg.Engine == SGLang:
			return sglangItem(raw, w.cfg.Fingerprint), nil
		}
		return trtllmName(raw)
	}
	if uuid.Exists() && uuid.Type != gjson.Null {
		name := w.namer.UUID(modality, uuid.String(), kw)
		if source.Str == "" {
			w.mediaMu.Lock()
			known := w.processor.has(name)
			w.mediaMu.Unlock()
			if !known {
				return "", &Refusal{Message: fmt.Sprintf("Cache miss for %s at index %d but data is not provided.", modality, index)}
			}
		}
		return name, nil
	}
	raw, err := w.load(ctx, source.Str)
	if err != nil {
		return "", err
	}
	if modality == "image" {
		return w.namer.Image(raw, kw), nil
	}
	return w.namer.Opaque(modality, raw), nil
}

// load gives the file behind a data URL or a loopback http URL, with vLLM's refusals.
func (w *Worker) load(ctx context.Context, link string) ([]byte, error) {
	if len(link) >= 5 && strings.EqualFold(link[:5], "data:") {
		spec, data, _ := strings.Cut(link, ",")
		if !strings.HasSuffix(spec, ";base64") {
			return nil, &Refusal{Status: http.StatusNotImplemented, Type: "NotImplementedError",
				Message: "Only base64 data URLs are supported for now."}
		}
		if strings.ContainsAny(data, "\r\n") { // Go's decoder would skip them
			return nil, &Refusal{Message: "Non-base64 digit found"}
		}
		raw, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, &Refusal{Message: "Non-base64 digit found"}
		}
		return raw, nil
	}
	if !strings.HasPrefix(link, "http://") && !strings.HasPrefix(link, "https://") {
		return nil, &Refusal{Message: "The URL must be either a HTTP, data or file URL."}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return nil, &Refusal{Message: "Failed to parse the media URL."}
	}
	req.Header.Set("User-Agent", "vLLM/"+w.cfg.Version)
	resp, err := w.fetcher.Do(req)
	if errors.Is(err, errNotLoopback) {
		return nil, &Refusal{Message: "The URL must be from one of the allowed domains: ['127.0.0.1']."}
	}
	unfetched := &Refusal{Status: http.StatusUnprocessableEntity, Type: "UnprocessableEntityError", Param: "image_url",
		Message: "Failed to fetch media from URL"}
	if err != nil {
		return nil, unfetched
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		unfetched.Message += fmt.Sprintf(": HTTP %d error", resp.StatusCode)
		return nil, unfetched
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxMedia+1))
	if err != nil || len(raw) > maxMedia {
		return nil, unfetched
	}
	return raw, nil
}

var errNotLoopback = errors.New("not a loopback address")

// loopbackClient fetches from this machine only, redirects included.
func loopbackClient() *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		host, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
			return errNotLoopback
		}
		return nil
	}}
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DialContext: dialer.DialContext,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 5 * time.Second}}
}
