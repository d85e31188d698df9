package vllmid

import (
	"bytes"
	"encoding/binary"
)

// IsRGB reports whether Pillow opens this file in mode RGB, so that vLLM need not convert it. It reads headers only; a
// file that it does not know counts as RGB. Source of the rules: Pillow 13's plugins, checked on a recorded set of files.
func IsRGB(file []byte) bool {
	switch {
	case bytes.HasPrefix(file, []byte("\x89PNG\r\n\x1a\n")):
		return len(file) > 25 && file[25] == 2 // IHDR colour type: truecolour, 8 or 16 bits
	case bytes.HasPrefix(file, []byte{0xff, 0xd8}):
		return jpegComponents(file) == 3
	case bytes.HasPrefix(file, []byte("GIF8")):
		return false // P or L
	case len(file) > 16 && string(file[:4]) == "RIFF" && string(file[8:12]) == "WEBP":
		return !webpAlpha(file)
	case bytes.HasPrefix(file, []byte("BM")) && len(file) >= 34:
		bits := binary.LittleEndian.Uint16(file[28:])
		return bits == 24 || bits == 16 || bits == 32 && binary.LittleEndian.Uint32(file[30:]) == 0
	case bytes.HasPrefix(file, []byte("II*\x00")):
		return tiffRGB(file, binary.LittleEndian)
	case bytes.HasPrefix(file, []byte("MM\x00*")):
		return tiffRGB(file, binary.BigEndian)
	}
	return true
}

// jpegComponents gives the component count of the frame header: 1 gray, 3 RGB, 4 CMYK; 0 if there is none.
func jpegComponents(file []byte) int {
	for at := 2; at+4 <= len(file); {
		if file[at] != 0xff {
			at++
			continue
		}
		marker := file[at+1]
		switch {
		case marker == 0xff:
			at++
			continue
		case marker == 0 || marker == 1 || marker >= 0xd0 && marker <= 0xd8:
			at += 2
			continue
		case marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			if at+10 <= len(file) {
				return int(file[at+9])
			}
			return 0
		case marker == 0xd9 || marker == 0xda:
			return 0
		}
		at += 2 + int(binary.BigEndian.Uint16(file[at+2:]))
	}
	return 0
}

// webpAlpha follows libwebp's WebPGetFeatures: a lossless stream's own bit, else the container's flag or an ALPH chunk.
func webpAlpha(file []byte) bool {
	alpha := false
	for at := 12; at+8 <= len(file); {
		body := file[at+8:]
		switch string(file[at : at+4]) {
		case "VP8X":
			alpha = len(body) > 0 && body[0]&0x10 != 0
			if len(body) > 0 && body[0]&0x02 != 0 { // animated: the flag decides
				return alpha
			}
		case "ALPH":
			return true
		case "VP8L":
			return len(body) > 4 && body[4]&0x10 != 0
		case "VP8 ":
			return alpha
		}
		size := int64(binary.LittleEndian.Uint32(file[at+4:]))
		next := int64(at) + 8 + size + size&1
		if next > int64(len(file)) {
			break
		}
		at = int(next)
	}
	return alpha
}

// tiffRGB reads the first directory: photometric RGB or YCbCr with three samples.
func tiffRGB(file []byte, order binary.ByteOrder) bool {
	if len(file) < 8 {
		return false
	}
	photometric, samples := uint16(0), uint16(1)
	at := int64(order.Uint32(file[4:]))
	if at+2 > int64(len(file)) {
		return false
	}
	count := int64(order.Uint16(file[at:]))
	for i := range count {
		entry := at + 2 + 12*i
		if entry+12 > int64(len(file)) {
			break
		}
		switch value := order.Uint16(file[entry+8:]); order.Uint16(file[entry:]) {
		case 262:
			photometric = value
		case 277:
			samples = value
		}
	}
	return (photometric == 2 || photometric == 6) && samples == 3
}
