package tokenizer

import "errors"

func loadTokenizerModel(d *directory, b []byte) (*Tokenizer, error) { return nil, errors.New("todo") }
func loadVocabMerges(d *directory, b []byte) (*Tokenizer, error)    { return nil, errors.New("todo") }
func loadTiktokenDir(d *directory, b []byte) (*Tokenizer, error)    { return nil, errors.New("todo") }
func LoadTekken(b []byte) (*Tokenizer, error)                       { return nil, errors.New("todo") }
func LoadSentencePiece(b []byte) (*Tokenizer, error)                { return nil, errors.New("todo") }
