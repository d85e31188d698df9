package prompt

import "os"

// Exports for the tests, which are in an external package because the engines' dialects import this one.

const CacheBytes = cacheBytes

// Encode returns a prompt's ids, without media inserted.
func (m *Renderer) Encode(p *DraftPrompt) []uint32 { return m.encode(new(Draft), p) }

// Forget replaces the tokenizer's cache of turns by an empty one.
func (m *Renderer) Forget(bytes int, seed uint64) { m.cache = m.tok.NewCache(bytes, seed) }

// TemplatesIn returns the templates of a directory: without tools, with tools, and the tokenizer's.
func TemplatesIn(dir string) ([3]string, error) {
	d, err := readDirectory(os.DirFS(dir))
	return [3]string{d.templates.plain, d.templates.tools, d.templates.tokenizer}, err
}
