package tensor

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// program returns a pickled tensor of shape dims as torch writes it (pickle protocol 2).
func program(dims ...int) string {
	var b strings.Builder
	b.WriteString("ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01ctorch\nFloatStorage\nq\x02X\x01\x00\x00\x000q\x03X\x03\x00\x00\x00cpuq\x04K\x08tq\x05QK\x00(")
	for _, d := range dims {
		b.WriteString("J" + string(binary.LittleEndian.AppendUint32(nil, uint32(d))))
	}
	b.WriteString("tq\x06K\x01\x85q\x07\x89ccollections\nOrderedDict\nq\x08)Rq\tt")
	b.WriteString("q\nR")
	return b.String()
}

func whole(value string) string { return "\x80\x02" + value + "." }

func under(key, value string) string {
	return "}q\x20(X\x04\x00\x00\x00nameq\x21K\x07X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(key)))) +
		key + "q\x22" + value + "u"
}

func archive(t testing.TB, name, value string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
	if err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(value))
	z.Close()
	return b.Bytes()
}

func legacy(value string) []byte {
	return []byte("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}q\x00(X\x0d\x00\x00\x00little_endianq\x01\x88u." + whole(value) + "\x80\x02]q\x00." + "raw")
}

func TestTokens(t *testing.T) {
	for name, c := range map[string]struct {
		file []byte
		want int
	}{
		"tensor":         {archive(t, "x/data.pkl", whole(program(37, 8))), 37},
		"batch of one":   {archive(t, "x/data.pkl", whole(program(1, 37, 8))), 37},
		"batch of two":   {archive(t, "x/data.pkl", whole(program(2, 37, 8))), 0},
		"vector":         {archive(t, "x/data.pkl", whole(program(37))), 0},
		"none":           {archive(t, "x/data.pkl", whole(program(0, 8))), 0},
		"mm_embeddings":  {archive(t, "x/data.pkl", whole(under("mm_embeddings", program(12, 8)))), 12},
		"image_embeds":   {archive(t, "x/data.pkl", whole(under("image_embeds", "]"+program(12, 8)+"a"))), 12},
		"another key":    {archive(t, "x/data.pkl", whole(under("weights", program(12, 8)))), 0},
		"parameter":      {archive(t, "x/data.pkl", whole("ctorch._utils\n_rebuild_parameter\n("+program(5, 8)+"\x88NtR")), 5},
		"no program":     {archive(t, "x/version", "3"), 0},
		"older form":     {legacy(program(9, 8)), 9},
		"older, dict":    {legacy(under("mm_embeddings", program(9, 8))), 9},
		"other magic":    {bytes.Replace(legacy(program(9, 8)), []byte("\x6c\xfc"), []byte("\x6c\xfd"), 1), 0},
		"npy":            {[]byte("\x93NUMPY\x01\x00\x3b\x00{'descr': '<f4', 'fortran_order': False, 'shape': (21, 8), }\n"), 21},
		"npy cut":        {[]byte("\x93NUMPY\x01\x00"), 0},
		"a call":         {archive(t, "x/data.pkl", whole("cos\nsystem\n(X\x02\x00\x00\x00lstR")), 0},
		"a call inside":  {archive(t, "x/data.pkl", whole(under("mm_embeddings", "cbuiltins\neval\n(X\x01\x00\x00\x001tR"))), 0},
		"a new object":   {archive(t, "x/data.pkl", whole("cos\nsystem\n)\x81")), 0},
		"no end":         {archive(t, "x/data.pkl", program(37, 8)), 0},
		"endless growth": {archive(t, "x/data.pkl", whole(strings.Repeat("(", 1<<16))), 0},
		"itself inside":  {archive(t, "x/data.pkl", whole("]q\x00h\x00a")), 0},
		"empty":          {nil, 0},
	} {
		got, err := Tokens(c.file)
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %d %v, want %d", name, got, err, c.want)
		}
	}
}

func FuzzTokens(f *testing.F) {
	f.Add(archive(f, "x/data.pkl", whole(under("mm_embeddings", program(12, 8)))))
	f.Add(legacy(program(9, 8)))
	f.Add([]byte("\x93NUMPY\x01\x00\x3b\x00{'descr': '<f4', 'fortran_order': False, 'shape': (21, 8), }\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		if n, err := Tokens(file); err == nil && (n < 1 || n > maxTokens) {
			t.Fatalf("%d tokens", n)
		}
		_, _, _ = load(file)
	})
}
