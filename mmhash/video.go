package mmhash

import (
	"bytes"

	"github.com/sightline-router/sightline/mmhash/header"
)

// VideoURL is DataURL for a video. data:video/jpeg is vLLM's form for frames that the client has extracted: base64 of JPEG files
// separated by commas. Its identity and its name are those of the text.
func VideoURL(pieces [][]byte) Source {
	src := DataURL(pieces)
	if isFrameList(pieces) {
		src.form = formText
	}
	return src
}

// isFrameList compares the media type, ignoring case.
func isFrameList(pieces [][]byte) bool {
	const want = "data:video/jpeg;"
	var head [len(want)]byte
	n := 0
	var esc escape
	for _, p := range pieces {
		for _, c := range p {
			if c, ok, bad := esc.next(c); bad || n == len(want) {
				return !bad && bytes.EqualFold(head[:], []byte(want))
			} else if ok {
				head[n] = c
				n++
			}
		}
	}
	return false
}

// Stream is the Format of a file that is identified by its bytes alone: audio, or a video whose frames are not counted.
const Stream = "stream"

// IsStream reports whether a file begins like an audio or video container that FFmpeg and libsndfile read.
func IsStream(file []byte) bool {
	has := func(at int, magic string) bool {
		return len(file) >= at+len(magic) && string(file[at:at+len(magic)]) == magic
	}
	return has(4, "ftyp") || has(0, "\x1aE\xdf\xa3") || has(0, "OggS") || has(0, "fLaC") || has(0, "ID3") ||
		has(0, "FORM") && has(8, "AIF") || has(0, "RIFF") && (has(8, "WAVE") || has(8, "AVI ")) ||
		len(file) > 1 && file[0] == 0xFF && file[1]&0xE0 == 0xE0 // MPEG's own frames
}

// video is a scratch on a pass over a video file.
type video scratch

func (v *video) take(p []byte) bool {
	v.clip.Write(p)
	(*scratch)(v).took(p)
	return true
}

// IdentifyVideo reads a video once. A *Refusal means that the bytes were not available; a clip.Error or *header.Error that its
// frames are not known, in which case ID and Bytes are set nevertheless.
func IdentifyVideo(src Source) (f Facts, err error) {
	s := scratches.Get().(*scratch)
	if src.form == formText {
		f, err = s.identifyFrames(src)
	} else {
		f, err = s.identifyVideo(src)
	}
	scratches.Put(s) // not if reading panics
	return f, err
}

func (s *scratch) identifyVideo(src Source) (f Facts, err error) {
	s.begin()
	if err := src.stream(&s.dec, (*video)(s)); err != nil {
		return f, err
	}
	s.hash.Sum(f.ID[:0])
	f.Bytes = s.n
	info, err := s.clip.Finish()
	f.Format, f.Width, f.Height, f.Frames, f.FPS = info.Format, info.Width, info.Height, info.Frames, info.FPS
	return f, err
}

// frameList digests the text and reads the first picture's header, because the engine refuses pictures of different sizes.
type frameList struct {
	*scratch
	commas int
	err    error // of the first picture's base64
}

func (l *frameList) take(p []byte) bool {
	l.n += int64(len(p))
	l.hash.Write(p)
	if l.commas == 0 && l.err == nil {
		first, _, ended := bytes.Cut(p, []byte(","))
		l.err = l.dec.feed(first, (*headOnly)(l.scratch))
		if l.err == nil && ended {
			l.err = l.dec.finish((*headOnly)(l.scratch))
		}
	}
	l.commas += bytes.Count(p, []byte(","))
	return true
}

func (s *scratch) identifyFrames(src Source) (f Facts, err error) {
	l := frameList{scratch: s}
	l.begin()
	l.dec.reset()
	if err := src.stream(nil, &l); err != nil {
		return f, err
	}
	if l.commas == 0 && l.err == nil {
		l.err = l.dec.finish((*headOnly)(l.scratch))
	}
	l.hash.Sum(f.ID[:0])
	f.Bytes = l.n
	if l.err != nil && l.err != errEnough {
		return f, l.err
	}
	info, err := l.head.Finish()
	if err != nil {
		return f, err
	}
	f.Width, f.Height = header.Info.Turned(info)
	f.Format, f.Frames = FrameList, l.commas+1
	return f, nil
}
