package factory

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// TestDownloadOfAnotherBuild: two builds may be alike where the second connection
// begins; by the validators of the answers, they are not joined.
func TestDownloadOfAnotherBuild(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		whole, err := b.lab.Image(img.Version, img.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		half := len(whole) / 2
		if half < overlap+1000 {
			t.Fatalf("an image of %d bytes shows nothing", len(whole))
		}
		other := slices.Clone(whole)
		other[half-overlap-1] ^= 1
		at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
		var answer atomic.Pointer[http.HandlerFunc]
		f := b.serve(func(w http.ResponseWriter, r *http.Request) { (*answer.Load())(w, r) })
		for name, c := range map[string]struct {
			before, after         string // ETags
			modified, modifiedNow time.Time
			deaf                  bool // to If-Range, as some caches are
			same                  bool
			sent                  int // bytes after the break
		}{
			"another tag":               {before: `"a"`, after: `"b"`, sent: len(whole)},
			"another tag, no heed":      {before: `"a"`, after: `"b"`, deaf: true, sent: half + overlap + len(whole)},
			"another weak tag":          {before: `W/"a"`, after: `W/"b"`, sent: half + overlap + len(whole)},
			"another time":              {modified: at, modifiedNow: at.Add(time.Hour), sent: len(whole)},
			"another time, no heed":     {modified: at, modifiedNow: at.Add(time.Hour), deaf: true, sent: half + overlap + len(whole)},
			"the same tag":              {before: `"a"`, after: `"a"`, same: true, sent: half + overlap},
			"the same tag, moved":       {before: `"a"`, after: `"a"`, modified: at, modifiedNow: at.Add(time.Hour), same: true, sent: half + overlap},
			"the same weak tag":         {before: `W/"a"`, after: `W/"a"`, same: true, sent: half + overlap},
			"the same time":             {modified: at, modifiedNow: at, same: true, sent: half + overlap},
			"a tag the part is without": {before: `"a"`, deaf: true, same: true, sent: half + overlap},
		} {
			var asked, sent atomic.Int64
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if asked.Add(1) > 1 {
					if c.deaf {
						r.Header.Del("If-Range")
					}
					if c.after != "" {
						w.Header().Set("ETag", c.after)
					}
					counted := &countingWriter{ResponseWriter: w}
					http.ServeContent(counted, r, "", c.modifiedNow, bytes.NewReader(whole))
					sent.Add(int64(counted.n))
					return
				}
				if c.before != "" {
					w.Header().Set("ETag", c.before)
				}
				if !c.modified.IsZero() {
					w.Header().Set("Last-Modified", c.modified.Format(http.TimeFormat))
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(other)))
				first := other
				if c.same {
					first = whole
				}
				_, _ = w.Write(first[:half])
				panic(http.ErrAbortHandler)
			})
			answer.Store(&handler)
			pin, err := f.Download(b.Context(), img, nil)
			sum := sha256.Sum256(whole)
			if err != nil || pin.SHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("%s: %+v, %v", name, pin, err)
			}
			if n := sent.Load(); n > int64(c.sent) {
				t.Errorf("%s: %d bytes were sent after the break, want %d", name, n, c.sent)
			}
			if err := os.Remove(filepath.Join(f.dir, img.Name)); err != nil {
				t.Error(err)
			}
		}
	})
}

// countingWriter counts the bytes of a body.
type countingWriter struct {
	http.ResponseWriter
	n int
}

func (w *countingWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.n += n
	return n, err
}

// TestRoomForAnotherBeginning: where the whole comes after a break, what had come is
// dropped before the rest of the disk is measured; and what was dropped does not make
// the next break the end.
func TestRoomForAnotherBeginning(t *testing.T) {
	inLab(t, func(b *bench) {
		img := b.image("v1.13.9")
		whole, err := b.lab.Image(img.Version, img.Schematic)
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		f := b.serve(func(w http.ResponseWriter, _ *http.Request) {
			switch asked++; asked {
			case 1, 4:
				w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
				_, _ = w.Write(whole[:len(whole)/2])
				panic(http.ErrAbortHandler)
			case 2:
				w.Header().Set("Content-Range", "bytes 0-9/10")
				w.WriteHeader(http.StatusPartialContent)
			case 3:
				panic(http.ErrAbortHandler)
			default:
				w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
				_, _ = w.Write(whole)
			}
		})
		f.free = func(dir string) (int64, error) {
			entries, err := os.ReadDir(dir)
			room := int64(len(whole)) + reserve
			for _, e := range entries {
				info, infoErr := e.Info()
				if err = errors.Join(err, infoErr); err == nil {
					room -= info.Size()
				}
			}
			return room, err
		}
		pin, err := f.Download(b.Context(), img, nil)
		sum := sha256.Sum256(whole)
		if err != nil || pin.SHA256 != hex.EncodeToString(sum[:]) || asked != 5 {
			t.Errorf("%+v after %d connections, %v", pin, asked, err)
		}
	})
}
