package pixels

// Turn gives the picture as ImageOps.exif_transpose shows it (newer vLLM does; TensorRT-LLM and SGLang's
// Qwen-VL path do not), by p.Orientation. It returns p itself where nothing turns.
func (p *RGB) Turn() *RGB {
	orientation := p.Orientation
	if orientation < 2 || orientation > 8 {
		return p
	}
	out := &RGB{W: p.W, H: p.H, Mode: p.Mode, Orientation: 1, Key: p.Key, Pix: make([]byte, len(p.Pix))}
	// Where pixel 0 of the result comes from, and how far one step right and one step down lead in the source.
	right, down := 3, 3*p.W
	lastCol, lastRow := 3*(p.W-1), 3*p.W*(p.H-1)
	from, dx, dy := 0, right, down
	switch orientation {
	case 2: // mirrored
		from, dx = lastCol, -right
	case 3: // half a turn
		from, dx, dy = lastCol+lastRow, -right, -down
	case 4: // upside down
		from, dy = lastRow, -down
	case 5: // transposed
		dx, dy = down, right
	case 6: // a quarter clockwise
		from, dx, dy = lastRow, -down, right
	case 7: // transversed
		from, dx, dy = lastCol+lastRow, -down, -right
	case 8: // a quarter counterclockwise
		from, dx, dy = lastCol, down, -right
	}
	if orientation >= 5 {
		out.W, out.H = p.H, p.W
	}
	to := out.Pix
	for y := range out.H {
		at := from + y*dy
		for range out.W {
			copy(to[:3], p.Pix[at:at+3])
			to, at = to[3:], at+dx
		}
	}
	return out
}
