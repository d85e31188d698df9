package pixels

// Scans of files whose coefficients come in several passes: progressive (first and refining scans of DC and AC) and
// sequential files with a scan per component. All write into whole-image coefficient arrays.

// scan is one SOS.
type scan struct {
	comps      []*component
	dct, act   [4]*huffTable // by component of the scan
	start, end int           // spectral selection, zigzag
	high, low  uint          // successive approximation
	restart    int           // blocks or MCUs between restart markers, 0 = none
	eobRun     int
}

// coefficients reads a scan into its components' arrays.
func (d *jpeg) coefficients(s *scan) error {
	if len(s.comps) > 1 {
		return d.units(s, d.mcuW, d.mcuH, func(x, y int) bool {
			for i, c := range s.comps {
				for v := range c.v {
					for h := range c.h {
						if !d.one(s, i, c, (y*c.v+v)*c.stride/8+x*c.h+h) {
							return false
						}
					}
				}
			}
			return true
		}, nil)
	}
	c := s.comps[0] // a scan of one component omits the blocks that only pad MCUs
	return d.units(s, (c.width+7)/8, (c.height+7)/8, func(x, y int) bool {
		return d.one(s, 0, c, y*c.stride/8+x)
	}, nil)
}

// one reads a scan's part of one block.
func (d *jpeg) one(s *scan, i int, c *component, at int) bool {
	b := &c.coefs[at]
	switch {
	case !d.progressive:
		return d.r.plain(b, s.dct[i], s.act[i], &c.pred)
	case s.start == 0 && s.high == 0:
		diff, ok := d.r.dc(s.dct[i])
		c.pred += diff
		b[0] = int16(c.pred << s.low)
		return ok
	case s.start == 0:
		b[0] |= int16(d.r.bits(1)) << s.low
		return true
	case s.high == 0:
		return d.r.first(b, s, s.act[i])
	}
	return d.r.refine(b, s, s.act[i])
}

// plain reads a whole block of a sequential file without dequantizing it.
func (r *bitReader) plain(b *[64]int16, dct, act *huffTable, pred *int32) bool {
	diff, ok := r.dc(dct)
	*pred += diff
	b[0] = int16(*pred)
	for k := 1; k < 64 && ok; k++ {
		var run, size int
		run, size, ok = r.ac(act)
		if size == 0 && run != 15 {
			return ok
		}
		k += run
		if size > 0 {
			if k > 63 {
				return false
			}
			b[k] = int16(extend(r.bits(size), size))
		}
	}
	return ok
}

// ac reads one symbol of an AC code, without its value.
func (r *bitReader) ac(t *huffTable) (run, size int, ok bool) {
	sym, ok := r.symbol(t)
	return int(sym >> 4), int(sym & 15), ok
}

// first reads the first scan of a band of AC coefficients.
func (r *bitReader) first(b *[64]int16, s *scan, t *huffTable) bool {
	if s.eobRun > 0 {
		s.eobRun--
		return true
	}
	for k := s.start; k <= s.end; k++ {
		run, size, ok := r.ac(t)
		if !ok {
			return false
		}
		if size == 0 {
			if run < 15 {
				s.eobRun = r.endRun(run) - 1
				return true
			}
			k += 15
			continue
		}
		k += run
		if k > s.end {
			return false
		}
		b[k] = int16(extend(r.bits(size), size) << s.low)
	}
	return true
}

// endRun reads how many blocks, including this one, have no more coefficients in the band.
func (r *bitReader) endRun(run int) int {
	n := 1 << run
	if run > 0 {
		n += int(r.bits(run))
	}
	return n
}

// refine reads one more bit of a band's coefficients: of the known non-zero ones, and new ones.
func (r *bitReader) refine(b *[64]int16, s *scan, t *huffTable) bool {
	k, one := s.start, int16(1)<<s.low
	if s.eobRun == 0 {
		for k <= s.end {
			run, size, ok := r.ac(t)
			if !ok {
				return false
			}
			fresh := int16(0)
			if size > 1 {
				return false
			} else if size == 1 {
				fresh = -one
				if r.bits(1) == 1 {
					fresh = one
				}
			} else if run < 15 {
				s.eobRun = r.endRun(run)
				break
			}
			for ; k <= s.end; k++ { // skip run zeros, refining non-zero coefficients
				if b[k] != 0 {
					r.correct(&b[k], one)
				} else {
					run--
					if run < 0 {
						break
					}
				}
			}
			if fresh != 0 {
				if k > s.end {
					return false
				}
				b[k] = fresh
			}
			k++
		}
	}
	if s.eobRun > 0 {
		for ; k <= s.end; k++ {
			if b[k] != 0 {
				r.correct(&b[k], one)
			}
		}
		s.eobRun--
	}
	return true
}

// correct reads the next bit of a non-zero coefficient.
func (r *bitReader) correct(c *int16, one int16) {
	if r.bits(1) == 0 || *c&one != 0 {
		return
	}
	if *c > 0 {
		*c += one
	} else {
		*c -= one
	}
}
