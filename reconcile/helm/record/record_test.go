package record

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
)

// recordOf writes a record as Helm does.
func recordOf(t testing.TB, body []byte, packed bool) []byte {
	t.Helper()
	if packed {
		var out bytes.Buffer
		zip := gzip.NewWriter(&out)
		_, err := zip.Write(body)
		if err = errors.Join(err, zip.Close()); err != nil {
			t.Fatal(err)
		}
		body = out.Bytes()
	}
	return []byte(base64.StdEncoding.EncodeToString(body))
}

func TestDecode(t *testing.T) {
	for _, packed := range []bool{true, false} {
		got, err := Decode(recordOf(t, []byte(`{"name":"x","manifest":"kind: Deployment\n","config":{"a":1},"chart":{"metadata":{"name":"c","version":"1.2.3"}}}`), packed))
		if err != nil || got.Manifest != "kind: Deployment\n" || string(got.Config) != `{"a":1}` || got.Chart.Metadata.Name != "c" || got.Chart.Metadata.Version != "1.2.3" {
			t.Errorf("%+v, %v", got, err)
		}
	}
	bomb := recordOf(t, bytes.Repeat([]byte{' '}, maxRelease+1), true)
	for _, c := range []struct {
		record []byte
		words  string
	}{
		{[]byte("%"), "base64"}, {recordOf(t, []byte("x"), false), "no release"}, {recordOf(t, []byte("x"), true), "no release"},
		{recordOf(t, []byte("\x1f\x8b\x08 and then nothing"), false), "unpacked"}, {bomb, "more than 64 MiB"}, {nil, "no release"},
	} {
		if _, err := Decode(c.record); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%.40q: %v, want %s", c.record, err, c.words)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(recordOf(f, []byte(`{"manifest":"kind: Deployment\n"}`), true))
	f.Add([]byte("eA=="))
	f.Fuzz(func(t *testing.T, b []byte) {
		if made, err := Decode(b); err != nil && (made.Manifest != "" || len(made.Config) > 0) {
			t.Errorf("%+v of what cannot be read", made)
		}
	})
}
