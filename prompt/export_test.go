package prompt

import "os"

// What the tests, which stand outside because the engines' dialects do, need to see.

const CacheBytes = cacheBytes

// Encode gives a prompt's ids, its media not put in.
func (m *Model) Encode(p *DraftPrompt) []uint32 { return m.encode(new(Draft), p) }

// Forget begins the tokenizer's cache of turns anew.
func (m *Model) Forget(bytes int, seed uint64) { m.cache = m.tok.NewCache(bytes, seed) }

// TemplatesIn are the templates of a directory: without tools, with them, and the tokenizer's.
func TemplatesIn(dir string) ([3]string, error) {
	d, err := readDirectory(os.DirFS(dir))
	return [3]string{d.templates.plain, d.templates.tools, d.templates.tokenizer}, err
}
