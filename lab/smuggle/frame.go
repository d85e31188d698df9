package smuggle

// Frame returns a text as a zstd frame of raw blocks (RFC 8878), as which SGLang 0.5.23 reads a body with x-body-compressed: zstd.
func Frame(text []byte) []byte {
	out := []byte(frameStart)
	for len(text) > 0 {
		n := min(len(text), 128<<10)
		size := n << 3
		if n == len(text) {
			size |= 1 // the last block
		}
		out = append(out, byte(size), byte(size>>8), byte(size>>16))
		out, text = append(out, text[:n]...), text[n:]
	}
	return out
}

const frameStart = "\x28\xb5\x2f\xfd\x00\x58" // no checksum, no content size, a window of 2 MB

// Unframe returns the text of a Frame; nil for anything else.
func Unframe(frame []byte) (text []byte) {
	if len(frame) < len(frameStart) || string(frame[:len(frameStart)]) != frameStart {
		return nil
	}
	for frame = frame[len(frameStart):]; len(frame) >= 3; {
		size := (int(frame[0]) | int(frame[1])<<8 | int(frame[2])<<16) >> 3
		if len(frame) < 3+size {
			return nil
		}
		text, frame = append(text, frame[3:3+size]...), frame[3+size:]
	}
	return text
}
