package pve

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// This file is storage.cfg: the storages of the whole cluster as they are
// configured.

// contents are the content types each kind of storage can have.
var contents = map[string][]string{
	"dir":     {"images", "rootdir", "vztmpl", "iso", "backup", "snippets", "none", "import"},
	"lvmthin": {"images", "rootdir"},
}

// configRow is a storage's entry, without the file's digest.
func (st *storage) configRow() row {
	r := row{"storage": st.name, "type": st.kind, "content": strings.Join(st.content, ",")}
	if st.kind == "dir" {
		r["path"] = st.path
	} else {
		r["vgname"], r["thinpool"] = "pve", "data"
	}
	if st.shared {
		r["shared"] = 1
	}
	return r
}

// listConfigured returns the storages by name, each once, and the digest of
// storage.cfg. s.mu is held.
func (s *Server) listConfigured() ([]*storage, string) {
	var out []*storage
	seen, all := set{}, ""
	for _, h := range s.hosts {
		for _, st := range h.storages {
			all += fmt.Sprint(st.name, st.kind, st.path, st.content)
			if !seen[st.name] {
				seen[st.name] = true
				out = append(out, st)
			}
		}
	}
	sum := sha1.Sum([]byte(all))
	return out, hex.EncodeToString(sum[:])
}

// listStorageConfig answers GET /storage.
func listStorageConfig(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	out := []row{}
	storages, digest := c.s.listConfigured()
	for _, st := range storages {
		if c.s.mayReadVolume(c.who, st) != nil || c.has("type") && c.str("type") != st.kind {
			continue
		}
		r := st.configRow()
		r["digest"] = digest
		out = append(out, r)
	}
	return out, nil
}

func readStorageConfig(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	storages, digest := c.s.listConfigured()
	for _, st := range storages {
		if st.name == c.str("storage") {
			r := st.configRow()
			r["digest"] = digest
			return r, nil
		}
	}
	return nil, perlError("storage '%s' does not exist", c.str("storage"))
}

// updateStorageConfig answers PUT /storage/{storage}: of all options only the
// content types are simulated.
func updateStorageConfig(c *call) (any, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	storages, digest := c.s.listConfigured()
	if given := c.str("digest"); given != "" && given != digest {
		return nil, perlError("update storage failed: detected modified configuration - file changed by other user? Try again.")
	}
	i := slices.IndexFunc(storages, func(st *storage) bool { return st.name == c.str("storage") })
	if i < 0 {
		return nil, perlError("update storage failed: storage '%s' does not exist", c.str("storage"))
	}
	name, kind := storages[i].name, storages[i].kind
	content := schema.SplitList(c.str("content"))
	for _, t := range content {
		if !slices.Contains(contents[kind], t) {
			return nil, perlError("update storage failed: storage does not support content type '%s'", t)
		}
	}
	if c.has("content") {
		for _, h := range c.s.hosts {
			if st := h.storage(name); st != nil {
				st.content = content
			}
		}
	}
	return row{"storage": name, "type": kind}, nil
}
