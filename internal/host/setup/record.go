package setup

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// Record is what init remembers of what it did on this host: which things it made,
// so that undo takes away no others, and what it wrote into which file, so that
// what people change later is seen. It holds no secret. A lost record makes
// init ask more and undo leave more.
type Record struct {
	Version int    `json:"version"` // 1
	Wishes  Wishes `json:"wishes"`
	// Made names what was made here, as the steps that made it do.
	Made []string `json:"made,omitempty"`
	// Files holds the SHA-256 of what was written, in hex, by path.
	Files map[string]string `json:"files,omitempty"`
	// Token is true when the token was about to be made, or is made and its secret
	// not stored yet: one that is there then is nobody's.
	Token bool `json:"tokenUnderWay,omitempty"`
	// Restart is true when the agent is about to be started again with what changes:
	// until it is, it works with what was there before.
	Restart bool `json:"restartUnderWay,omitempty"`
}

// Sum is the digest that a record keeps of a file.
func Sum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// wrote reports whether a file holds what init wrote into it.
func (r Record) wrote(path string, have []byte) bool { return r.Files[path] == Sum(have) }

// made reports whether init made something.
func (r Record) made(name string) bool { return slices.Contains(r.Made, name) }

// Begun is the record with what must be known before a plan is carried out.
func (r Record) Begun(w Wishes, p Plan) Record {
	r.Wishes = w
	r.Restart = r.Restart || slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Name == restartStep })
	return r
}

// Before is the record with what must be known of a step before it is begun.
func (r Record) Before(s Step) Record {
	r.Made = slices.Clone(r.Made)
	for _, name := range s.Makes {
		if !r.made(name) {
			r.Made = append(r.Made, name)
		}
	}
	if s.Call != nil && s.Call.SecretTo != nil {
		r.Token = true
	}
	return r
}

// After is the record with what is known when a step is done. content is what
// was written, if anything was.
func (r Record) After(s Step, content []byte) Record {
	files := map[string]string{}
	for path, sum := range r.Files {
		files[path] = sum
	}
	switch {
	case s.Name == restartStep || s.Name == startStep:
		r.Restart = false
	case s.File != nil && s.File.Kept:
		// Who wrote it is the same as before.
	case s.File != nil:
		files[s.File.Path] = Sum(content)
	case s.Call != nil && s.Call.SecretTo != nil:
		files[s.Call.SecretTo.Path] = Sum(content)
		r.Token = false
	case s.Remove != "":
		delete(files, s.Remove)
	}
	r.Files = files
	return r
}
