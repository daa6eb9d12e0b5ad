package pve

import (
	"bytes"
	"cmp"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/talos-agent/talos-agent/internal/lab/pve/schema"
)

// received is a file that has arrived: what it is, not the bytes.
type received struct {
	name   string
	bytes  int64
	header []byte // the first bytes
	sha256 string
	sum    string // by the algorithm that was asked for
}

// headerBytes is how much of a file is kept to read its virtual size.
const headerBytes = 32

// uploadFields is the order in which pveproxy wants the fields of an upload;
// only the first and the last are required.
var uploadFields = []string{"content", "checksum-algorithm", "checksum", "filename"}

// answerUpload answers POST upload. pveproxy reads the form itself, in a fixed
// order and with the file last; anything else is a bare 400.
func (s *Server) answerUpload(c *call, m *schema.Method) (any, error) {
	file, done, err := s.receiveForm(c)
	if err != nil {
		done()
		s.log.Debug("upload", "err", err)
		return nil, &failure{status: http.StatusBadRequest, text: "Bad Request", body: emptyBody}
	}
	c.in["filename"] = file.name
	if errs := m.CheckParams(c.in); len(errs) > 0 {
		done()
		return nil, refuseParams(errs)
	}
	st, err := s.checkDestination(c, file.name)
	if err != nil {
		done()
		return nil, err
	}
	algorithm, want := c.str("checksum-algorithm"), c.str("checksum")
	volume := c.str("content") + "/" + file.name
	name, err := s.forkTask(c.who, c.node, "imgcopy", "", c.fault, func(t *task) error {
		defer done()
		return s.storeUpload(t, c.node, st, volume, file, algorithm, want)
	})
	if err != nil {
		done()
	}
	return name, err
}

// receiveForm reads the form. The file's bytes are counted, hashed and dropped.
// done is called when the upload is over, whatever comes of it.
func (s *Server) receiveForm(c *call) (file received, done func(), err error) {
	done = func() {}
	form, err := c.r.MultipartReader()
	if err != nil {
		return file, done, err
	}
	next := 0
	for {
		part, err := form.NextPart()
		if err != nil {
			return file, done, fmt.Errorf("read the next field: %w", err)
		}
		name := part.FormName()
		for next < len(uploadFields) && uploadFields[next] != name {
			next++
		}
		if next == len(uploadFields) {
			return file, done, fmt.Errorf("field %q is unknown or out of order", name)
		}
		if name == "filename" {
			done = s.noteUpload(c, path.Base(part.FileName()))
			if file, err = readAll(part, c.str("checksum-algorithm")); err != nil {
				return file, done, err
			}
			file.name = path.Base(part.FileName())
			if _, err := form.NextPart(); !errors.Is(err, io.EOF) {
				return file, done, errors.New("the file is not the last field")
			}
			return file, done, nil
		}
		next++
		value, err := io.ReadAll(io.LimitReader(part, maxBody))
		if err != nil {
			return file, done, fmt.Errorf("read field %s: %w", name, err)
		}
		c.in[name] = string(value)
	}
}

// readAll reads a file, keeping what is worth knowing of it.
func readAll(r io.Reader, algorithm string) (received, error) {
	all, asked := newHash(""), newHash(algorithm)
	header := make([]byte, headerBytes)
	n, err := io.ReadFull(r, header)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return received{}, fmt.Errorf("read file: %w", err)
	}
	header = header[:n]
	size, err := io.Copy(io.MultiWriter(all, asked), io.MultiReader(bytes.NewReader(header), r))
	if err != nil {
		return received{}, fmt.Errorf("read file: %w", err)
	}
	return received{bytes: size, header: header, sha256: hex.EncodeToString(all.Sum(nil)), sum: hex.EncodeToString(asked.Sum(nil))}, nil
}

// newHash returns the hash of a checksum algorithm; SHA-256 for none.
func newHash(algorithm string) hash.Hash {
	switch algorithm {
	case "md5":
		return md5.New()
	case "sha1":
		return sha1.New()
	case "sha224":
		return sha256.New224()
	case "sha384":
		return sha512.New384()
	case "sha512":
		return sha512.New()
	}
	return sha256.New()
}

// fileKinds are the extensions a content type takes.
var fileKinds = map[string][]string{
	"iso":    {".iso", ".img"},
	"vztmpl": {".tar.gz", ".tar.xz", ".tar.zst"},
	"import": {".ova", ".ovf", ".qcow2", ".raw", ".vmdk"},
}

// checkDestination checks where a file is to go.
func (s *Server) checkDestination(c *call, file string) (*storage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := pathStorage(c)
	if err != nil {
		return nil, err
	}
	content := c.str("content")
	if !st.acceptsContent(content) {
		return nil, perlError("storage '%s' does not support '%s' content", st.name, content)
	}
	for _, ext := range fileKinds[content] {
		if strings.HasSuffix(file, ext) {
			return st, nil
		}
	}
	return nil, invalidParam("filename", "wrong file extension")
}

// noteUpload notes an upload that is under way. The agent promised not to
// upload one image twice at a time.
func (s *Server) noteUpload(c *call, file string) (done func()) {
	if !s.isAgent(c.who.id) {
		return func() {}
	}
	key := c.who.id + " " + c.node.name + "/" + c.str("storage") + "/" + file
	s.mu.Lock()
	s.uploads[key]++
	twice := s.uploads[key] > 1
	s.mu.Unlock()
	if twice {
		s.world.Violate("duplicate", "two uploads of %s to %s of %s at a time", file, c.str("storage"), c.node.name)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.uploads[key]--
	}
}

// storeUpload is the task of an upload. A file of that name is replaced.
func (s *Server) storeUpload(t *task, h *host, st *storage, name string, file received, algorithm, want string) error {
	temp := "/var/tmp/pveupload-" + hex.EncodeToString(randomBytes(16))
	s.logLine(t, "starting file import from: %s", temp)
	if want != "" && algorithm != "" {
		s.logLine(t, "calculating checksum...")
		if !strings.EqualFold(want, file.sum) {
			return perlError("checksum mismatch: got '%s' != expect '%s'", file.sum, want)
		}
		s.logLine(t, "OK, checksum verified")
	}
	target := st.file(name)
	s.logLine(t, "target node: %s", h.name)
	s.logLine(t, "target file: %s", target)
	s.logLine(t, "file size is: %d", file.bytes)
	s.logLine(t, "command: cp -- %s %s", temp, target)
	if err := s.spendTime(t, "upload", h.name, s.world.Latency.Upload, "download/"+file.name); err != nil {
		return err
	}
	s.keepFile(st, name, file)
	s.logLine(t, "finished file import successfully")
	return nil
}

// keepFile puts a file onto a storage. What its bytes hold, the world may know.
func (s *Server) keepFile(st *storage, name string, file received) {
	content, _, _ := strings.Cut(name, "/")
	v := &volume{name: name, content: content, format: content, bytes: file.bytes, file: file.bytes, created: time.Now(), sha256: file.sha256}
	if content == "import" {
		v.format = strings.TrimPrefix(path.Ext(name), ".")
		v.bytes = cmp.Or(virtualSize(file.header), file.bytes)
	}
	v.image, _ = s.world.ImageOf(file.sha256)
	s.mu.Lock()
	defer s.mu.Unlock()
	st.volumes[name] = v
}

// virtualSize reads the size of the disk inside a qcow2 image from its header;
// 0 when it is none.
func virtualSize(header []byte) int64 {
	if len(header) < 32 || string(header[:4]) != "QFI\xfb" {
		return 0
	}
	n := binary.BigEndian.Uint64(header[24:32])
	if n > 1<<60 {
		return 0
	}
	return int64(n)
}
