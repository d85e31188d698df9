package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sightline-router/sightline/body/jsonread"
)

// What transformers 5 makes of the files beside tokenizer.json: _from_pretrained in tokenization_utils_base.py and __init__ in
// tokenization_utils_tokenizers.py, as of 5.19. keys and neighbours say of each key and file that it reads what becomes of it here, and a
// test compares them with a recording of what it reads. Other keys do nothing, unless they name a token (…_token with a text).

// use is what becomes of a key or file.
type use uint8

const (
	harmless use = iota // changes no ids of a prompt
	readHere            // read, here or with the chat template (package prompt)
	ends                // ends exactness, unless it is missing, null, false or empty
)

var keys = keyTable(map[use]string{
	readHere: `tokenizer_class added_tokens_decoder additional_special_tokens extra_special_tokens model_specific_special_tokens bos_token
		eos_token unk_token sep_token pad_token cls_token mask_token add_prefix_space add_bos_token add_eos_token legacy chat_template
		fix_mistral_regex auto_map pretokenize_regex fast_tokenizer_files`,
	ends: `split_special_tokens init_inputs post_processor tokenizer_object vocab merges from_slow mistral_format`,
	harmless: `_commit_hash _from_auto _from_pipeline _json_padding _json_truncation _spm_precompiled_charsmap add_generation_prompt
		backend cache_dir clean_up_tokenization_spaces clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
		code_revision commit_message config continuing_subword_prefix device_map end_of_word_suffix errors files_loaded
		force_download gguf_file grounded_generation_template initial_alphabet is_local local_files_only max_len max_length
		max_target_length merges_file model_input_names model_max_length name_or_path normalizer pad_to_multiple_of
		pad_token_type_id padding_side processor_class proxies repo_id response_schema response_template return_token_type_ids
		revision save_jinja_files slow_tokenizer_class sp_model_kwargs spaces_between_special_tokens special_tokens_map_file stride
		subfolder token tokenizer tokenizer_file tokenizer_padding tokenizer_truncation tokenizer_type tool_use_template
		trim_offsets truncation_side truncation_strategy trust_remote_code unk_id use_default_system_prompt use_fast
		use_source_tokenizer verbose vocab_file`,
})

// neighbours are the files that transformers and vLLM look for.
var neighbours = keyTable(map[use]string{
	readHere: `config.json tokenizer_config.json tokenizer.json special_tokens_map.json added_tokens.json chat_template.jinja
		additional_chat_templates tokenizer.model tekken.json tiktoken.model vocab.json merges.txt`,
	ends: `sentence_bert_config.json sentence_roberta_config.json sentence_distilbert_config.json sentence_camembert_config.json
		sentence_albert_config.json sentence_xlm-roberta_config.json sentence_xlnet_config.json`, // with do_lower_case: vLLM's hf tokenizer
	harmless: `generation_config.json processor_config.json preprocessor_config.json`,
})

func keyTable(lists map[use]string) map[string]use {
	table := map[string]use{}
	for u, list := range lists {
		for name := range strings.FieldsSeq(list) {
			table[name] = u
		}
	}
	return table
}

// standardTokens are SPECIAL_TOKENS_ATTRIBUTES.
var standardTokens = strings.Fields("bos_token eos_token unk_token sep_token pad_token cls_token mask_token")

// codeClasses are the classes of published models' own code (auto_map) that take a tokenizer.json as it is.
var codeClasses = strings.Fields("MiniCPMVTokenizerFast")

// object is a JSON object in the order of its keys.
type object []entry

type entry struct {
	key    string
	value  json.RawMessage
	mapped bool // from special_tokens_map.json, where any object is a token
}

func (o *object) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	r := readerOf(bytes.Clone(b))
	r.Object(func(key string) { o.set(entry{key: key, value: json.RawMessage(r.Skip())}) })
	return r.Err()
}

func (o object) find(key string) int {
	return slices.IndexFunc(o, func(e entry) bool { return e.key == key })
}

// set replaces a value in its place, or appends it.
func (o *object) set(e entry) {
	if i := o.find(e.key); i >= 0 {
		(*o)[i] = e
	} else {
		*o = append(*o, e)
	}
}

func (o object) get(key string) entry {
	if i := o.find(key); i >= 0 {
		return o[i]
	}
	return entry{value: json.RawMessage("null")}
}

// empty reports whether Python takes the value for false.
func (e entry) empty() bool {
	return slices.Contains([]string{"null", "false", "0", `""`, "[]", "{}"}, string(e.value))
}

// items returns the entries of an object or a list, nil of anything else.
func (e entry) items() (all object) {
	var list []json.RawMessage
	if len(e.value) == 0 {
		return nil
	}
	switch e.value[0] {
	case '{':
		_ = all.UnmarshalJSON(e.value)
	case '[':
		_ = json.Unmarshal(e.value, &list)
		for _, v := range list {
			all = append(all, entry{value: v})
		}
	}
	for i := range all {
		all[i].mapped = e.mapped
	}
	return all
}

// token reads a special token.
func (e entry) token() (a AddedToken, ok bool) {
	if json.Unmarshal(e.value, &a.Content) == nil {
		a.Special = true
		return a, true
	}
	var kind struct {
		Type string `json:"__type"`
	}
	if json.Unmarshal(e.value, &kind) != nil || kind.Type != "AddedToken" && !e.mapped {
		return a, false
	}
	c := configToken{Special: e.mapped}
	err := json.Unmarshal(e.value, &c)
	return AddedToken(c), err == nil
}

// configToken is a token as Python's AddedToken reads it: matched in normalized text unless it is special or says otherwise.
type configToken AddedToken

func (c *configToken) UnmarshalJSON(b []byte) error {
	special := c.Special
	var normalized struct{ Normalized *bool }
	if err := cmp.Or(json.Unmarshal(b, (*AddedToken)(c)), json.Unmarshal(b, &normalized)); err != nil {
		return err
	}
	c.Special = c.Special || special
	c.Normalized = !c.Special
	if normalized.Normalized != nil {
		c.Normalized = *normalized.Normalized
	}
	return nil
}

// readConfig reads the files beside the tokenizer.
func (d *directory) readConfig() error {
	var config, mapped object
	var extra map[string]uint32
	if err := cmp.Or(jsonread.File(d.dir, "tokenizer_config.json", &config), jsonread.File(d.dir, "tokenizer_config.json", &d.config),
		jsonread.File(d.dir, "special_tokens_map.json", &mapped), jsonread.File(d.dir, "added_tokens.json", &extra),
		jsonread.File(d.dir, "config.json", &d.model)); err != nil {
		return err
	}
	for _, e := range config {
		if keys[e.key] == ends && !e.empty() {
			d.end("tokenizer_config.json: " + e.key)
		}
	}
	for _, file := range slices.Sorted(maps.Keys(neighbours)) {
		var lower struct {
			Lower bool `json:"do_lower_case"`
		}
		if neighbours[file] == ends && jsonread.File(d.dir, file, &lower) == nil && lower.Lower {
			d.end(file + ": do_lower_case")
		}
	}
	class := AsFile
	if d.classOf != nil {
		class = d.classOf(cmp.Or(d.config.Class, d.model.Class))
		d.form = forms[class]
	}
	if class == Unlisted {
		d.end("tokenizer_class " + d.config.Class)
	}
	d.readNames(config, mapped)
	return d.readAdded(extra)
}

// end notes why the engine's tokenizer is another.
func (d *directory) end(what string) { d.unlike = cmp.Or(d.unlike, what) }

// readAdded collects the added tokens of tokenizer_config.json or, without a list there, of added_tokens.json.
func (d *directory) readAdded(extra map[string]uint32) error {
	byID := map[uint32]AddedToken{}
	for key, c := range d.config.AddedTokens {
		id, err := strconv.ParseUint(key, 10, 32)
		if err != nil || id > maxID {
			return fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %q is not a token id up to %d", key, maxID)
		}
		c.ID = uint32(id)
		byID[c.ID] = AddedToken(c)
	}
	if d.config.AddedTokens == nil {
		for text, id := range extra {
			byID[id] = AddedToken{ID: id, Content: text, Special: d.marked[text], Normalized: !d.marked[text]}
		}
	}
	d.added = inOrder(byID)
	return nil
}

func inOrder(byID map[uint32]AddedToken) (all []AddedToken) {
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		all = append(all, byID[id])
	}
	return all
}

// readNames collects the special tokens in the order in which transformers adds them: the standard ones, those with names of the
// model's own, and those without names.
func (d *directory) readNames(config, mapped object) {
	var standard, own, found object
	isStandard := func(key string) bool { return slices.Contains(standardTokens, key) }
	for _, e := range config {
		switch named := strings.HasSuffix(e.key, "_token"); {
		case isStandard(e.key):
			standard.set(e)
		case named && e.value[0] == '"':
			own.set(e)
		case named && e.value[0] == '{':
			found.set(e)
		}
	}
	var extras object
	unmarked := -1 // from this one on, transformers does not know extras yet when it reads added_tokens.json
	more := config.get("extra_special_tokens")
	if more.empty() {
		more = config.get("additional_special_tokens")
	}
	spread := func(e entry) {
		switch e.value[0] {
		case '{':
			for _, item := range e.items() {
				own.set(item)
			}
		case '[':
			extras = append(extras, e.items()...)
		}
	}
	spread(more)
	if len(own) == 0 && config.find("model_specific_special_tokens") >= 0 {
		spread(config.get("model_specific_special_tokens"))
	}
	if config.find("added_tokens_decoder") < 0 {
		for _, e := range mapped {
			e.mapped = true
			switch {
			case isStandard(e.key):
				standard.set(e)
			case e.key == "extra_special_tokens":
				spread(e)
			case e.key == "additional_special_tokens":
				e.mapped = false
				if string(more.value) == "null" || more.value[0] == '{' {
					unmarked = len(extras)
					spread(e)
				}
			case strings.HasSuffix(e.key, "_token"):
				found.set(e)
			}
		}
	}
	if d.form != nil {
		for key, text := range d.form.defaults {
			if standard.find(key) < 0 {
				quoted, _ := json.Marshal(text)
				standard.set(entry{key: key, value: quoted})
			}
		}
	}
	take := func(into *[]AddedToken, e entry) {
		a, ok := e.token()
		switch {
		case string(e.value) == "null":
		case ok:
			*into = append(*into, a)
		default:
			d.end("a special token that is neither a text nor a token")
		}
	}
	d.marked = map[string]bool{}
	mark := func(e entry) {
		if a, ok := e.token(); ok && (e.mapped || e.value[0] == '"') {
			d.marked[a.Content] = true
		}
	}
	for _, key := range standardTokens {
		mark(standard.get(key))
		take(&d.names, standard.get(key))
		if key == "unk_token" && len(d.names) > 0 && string(standard.get(key).value) != "null" {
			d.unk = d.names[len(d.names)-1].Content
		}
	}
	for _, e := range found {
		if _, ok := e.token(); ok { // anything else is an option that no class has
			take(&d.names, e)
		}
	}
	for _, e := range own {
		take(&d.names, e)
	}
	for i, e := range extras {
		if unmarked < 0 || i < unmarked {
			mark(e)
		}
		take(&d.extras, e)
	}
}

// addTokens adds the tokens of a tokenizer.json, unless the class leaves them out, and those that the files beside it name.
func (t *Tokenizer) addTokens(d *directory, file []AddedToken) {
	listed := d.added
	if d.config.AddedTokens == nil {
		byID := map[uint32]AddedToken{}
		for _, a := range slices.Concat(d.added, file) {
			byID[a.ID] = a
		}
		listed = inOrder(byID)
	}
	if d.form == nil {
		t.add(slices.Clone(file))
	}
	named, known := map[string]bool{}, map[string]AddedToken{}
	for _, a := range d.names {
		named[a.Content] = true
	}
	for _, a := range t.added {
		known[a.Content] = *a
	}
	more := slices.Clone(listed)
	for i := range more {
		more[i].Special = more[i].Special || named[more[i].Content]
		known[more[i].Content] = more[i]
	}
	specials := slices.Concat(d.names, d.extras)
	for _, a := range specials {
		if _, ok := known[a.Content]; !ok {
			a.Special = a.Special || named[a.Content]
			more = append(more, a)
			if d.classOf == nil { // older releases of transformers add fewer
				d.end("the special token " + strconv.Quote(a.Content))
			}
		}
	}
	t.addOther(more)
	if d.form == nil || !d.form.again {
		return
	}
	for i, a := range specials {
		if k, ok := known[a.Content]; ok && !d.form.plain {
			specials[i] = k
		} else if d.form.plain {
			specials[i] = AddedToken{Content: a.Content}
		}
		specials[i].Special = true
	}
	t.addOther(specials)
}

// addOther adds the tokens that differ from those that were added.
func (t *Tokenizer) addOther(all []AddedToken) {
	t.add(slices.DeleteFunc(all, t.hasAdded))
}

// checkNamed ends exactness if the configuration names a token that none of the added ones is: transformers would add it.
func (d *directory) checkNamed() {
	for _, a := range slices.Concat(d.names, d.extras) {
		if !slices.ContainsFunc(d.added, func(b AddedToken) bool { return a.Content == b.Content }) {
			d.end("the special token " + strconv.Quote(a.Content))
		}
	}
}

// checkFile ends exactness where a model's own code reads the tokenizer.json, or another file is read in its place.
func (d *directory) checkFile() {
	if slices.ContainsFunc(d.config.Files, func(file string) bool { return file != "tokenizer.json" }) {
		d.end("tokenizer_config.json: fast_tokenizer_files")
	}
	code := object{{key: "AutoTokenizer", value: d.config.AutoMap}}
	if len(d.config.AutoMap) > 0 && d.config.AutoMap[0] == '{' {
		code = code[0].items()
	}
	for _, e := range code.get("AutoTokenizer").items() {
		var ref string
		if json.Unmarshal(e.value, &ref) == nil && ref != "" && !slices.Contains(codeClasses, ref[strings.LastIndexByte(ref, '.')+1:]) {
			d.end("tokenizer_config.json: auto_map: " + ref)
		}
	}
}

// fixMistral returns the pre-tokenizers after _patch_mistral_regex of transformers 5: with fix_mistral_regex, the pattern of models
// that were saved by releases up to 4.57.2 is another.
func (d *directory) fixMistral(pre preSpec) []preSpec {
	steps := pre.flat(nil)
	if !d.config.FixMistral || len(steps) == 0 {
		return steps
	}
	var major, minor, patch int
	n, _ := fmt.Sscanf(d.model.Version, "%d.%d.%d", &major, &minor, &patch)
	types := []string{"", "mistral", "mistral3", "voxtral", "ministral", "pixtral"}
	switch {
	case d.model.Version == "":
	case major >= 5 || slices.Compare([]int{major, minor, patch}, []int{4, 57, 2}) <= 0 && !slices.Contains(types, d.model.Type):
		return steps
	case n < 2 || slices.Compare([]int{major, minor, patch}, []int{4, 57, 2}) > 0: // releases of transformers differ
		d.end("tokenizer_config.json: fix_mistral_regex")
	}
	if d.classOf == nil {
		d.end("tokenizer_config.json: fix_mistral_regex")
	}
	d.fixed = true
	pattern, no := patternTekken, false
	split := preSpec{Type: "Split", Pattern: patternSpec{Regex: &pattern}, Behavior: "Isolated"}
	switch {
	case pre.Type == "Sequence":
		return append([]preSpec{split}, steps[1:]...)
	case pre.Type == "Metaspace":
		pre = preSpec{Type: "ByteLevel", AddPrefixSpace: &no, UseRegex: &no}
	}
	return []preSpec{split, pre}
}
