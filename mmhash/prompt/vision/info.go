package vision

// Info describes one family of the table, for documentation and for explain.
type Info struct {
	Name, Title   string
	ModelTypes    []string // config.json model_type
	Architectures []string // config.json architectures
	Placeholder   string   // what is replaced in the prompt
	Rule          string   // how a picture's tokens are counted
	// Unpredicted says for each modality of the family that cannot be computed
	// from a request why not.
	Unpredicted map[string]string
	Note        string
}

// Families lists the table in its order.
func Families() []Info {
	var out []Info
	for _, f := range families() {
		i := Info{Name: f.name, Title: f.title, ModelTypes: f.types, Architectures: f.archs, Note: f.note, Unpredicted: map[string]string{}}
		m := &Model{fam: f, names: map[string]string{}}
		for key, n := range f.names {
			m.names[key] = n.text
		}
		if i.Placeholder = m.fill(f.image.target); i.Placeholder == "" && f.image.id != "" {
			i.Placeholder = "(inserted at the start)"
		}
		if f.image.count != nil {
			i.Rule = f.image.count.rule()
		}
		for modality, e := range map[string]*entry{"image": f.image, "video": f.video, "audio": f.audio} {
			if e != nil && e.undecidable != "" {
				i.Unpredicted[modality] = e.undecidable
			}
		}
		out = append(out, i)
	}
	return out
}

// Rule says how the model counts a picture, with the names of its settings.
func (m *Model) Rule() string {
	if m.fam == nil || m.fam.image == nil || m.fam.image.count == nil {
		return ""
	}
	return m.fam.image.count.rule()
}
