package gitserver

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/revlist"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage"
)

// The capabilities each service offers, besides where HEAD points. Fetching
// needs multi_ack_detailed: real git over HTTP misreads the plain dialogue when
// it has something in common with the server. Pushed packs must be whole
// (no-thin), because storage on disk keeps them as they come.
var (
	uploadCapabilities = []capability.Capability{
		capability.MultiACKDetailed, capability.Sideband64k, capability.OFSDelta, capability.NoProgress,
		capability.AllowTipSHA1InWant, capability.AllowReachableSHA1InWant,
	}
	receiveCapabilities = []capability.Capability{
		capability.ReportStatus, capability.DeleteRefs, capability.Sideband64k, capability.OFSDelta,
		capability.Quiet, "no-thin",
	}
)

// badRequestError is a client that does not speak the protocol.
type badRequestError struct{ err error }

func (e *badRequestError) Error() string { return "not a git request: " + e.err.Error() }
func (e *badRequestError) Unwrap() error { return e.err }

// advertiseRefs writes the references and capabilities a service begins with.
// overHTTP puts the line in front that names the service.
func (r *Repo) advertiseRefs(out io.Writer, service string, overHTTP bool) error {
	ads := packp.NewAdvRefs()
	if overHTTP {
		ads.Prefix = [][]byte{[]byte("# service=" + service), pktline.Flush}
	}
	caps := uploadCapabilities
	if service == receivePack {
		caps = receiveCapabilities
	}
	if service == uploadPack && r.allowsFilter() {
		caps = append(slices.Clone(caps), capability.Filter)
	}
	for _, c := range caps {
		if err := ads.Capabilities.Set(c); err != nil {
			return err
		}
	}
	err := r.Edit(func(s storage.Storer) error { return addReferences(s, ads, service == uploadPack) })
	if err != nil {
		return fmt.Errorf("list references of %s: %w", r.name, err)
	}
	if err := ads.Capabilities.Set(capability.Agent, "talos-agent-lab"); err != nil {
		return err
	}
	return ads.Encode(out)
}

// addReferences fills in the references; with HEAD for those who fetch.
func addReferences(s storage.Storer, ads *packp.AdvRefs, head bool) error {
	refs, err := s.IterReferences()
	if err != nil {
		return err
	}
	err = refs.ForEach(func(ref *plumbing.Reference) error {
		if ref.Type() != plumbing.HashReference || ref.Name() == plumbing.HEAD {
			return nil
		}
		ads.References[ref.Name().String()] = ref.Hash()
		if tag, err := object.GetTag(s, ref.Hash()); err == nil {
			ads.Peeled[ref.Name().String()] = tag.Target
		}
		return nil
	})
	if err != nil || !head {
		return err
	}
	switch ref, err := storer.ResolveReference(s, plumbing.HEAD); {
	case err == nil:
		h := ref.Hash()
		ads.Head = &h
		return ads.Capabilities.Set(capability.SymRef, "HEAD:"+ref.Name().String())
	case errors.Is(err, plumbing.ErrReferenceNotFound):
		return nil // no commit yet
	default:
		return err
	}
}

// uploadPack answers a client that fetches: what it wants, what it has, then a
// pack with the difference. A stateless client (HTTP) repeats everything in
// each request and gets one answer to each; any other goes on talking.
func (r *Repo) uploadPack(in io.Reader, out io.Writer, stateless bool) error {
	lines := pktline.NewScanner(in)
	wants, caps, below, err := readWants(lines)
	if err != nil {
		return &badRequestError{err}
	}
	if len(wants) == 0 {
		return nil // looked at the references and left
	}
	enc := pktline.NewEncoder(out)
	if below != noFilter && !r.allowsFilter() {
		return enc.EncodeString("ERR upload-pack: filtering not recognized\n")
	}
	for _, want := range wants {
		if !r.hasObject(want) {
			return enc.Encodef("ERR upload-pack: not our ref %s\n", want)
		}
	}
	common, done, err := r.negotiateCommon(lines, enc, caps.Supports(capability.MultiACKDetailed), stateless)
	if err != nil || !done {
		return err
	}
	pack, err := r.packObjects(wants, common, below)
	if err != nil {
		return err
	}
	if !caps.Supports(capability.Sideband64k) {
		_, err = out.Write(pack)
		return err
	}
	if err := writeSideband(out, pack); err != nil {
		return err
	}
	return enc.Flush()
}

// writeSideband writes a pack as packets of the data band. They are cut here:
// go-git's muxer counts the four digits of the length into what a packet holds,
// and refuses its own packets as soon as there is more than one.
func writeSideband(out io.Writer, pack []byte) error {
	const band = 1 // the byte that names the band
	mux := sideband.NewMuxer(sideband.Sideband64k, out)
	for part := range slices.Chunk(pack, pktline.MaxPayloadSize-band) {
		if _, err := mux.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// noFilter is the size of files that a client asks to be left out when it asks for none.
const noFilter = math.MaxInt64

// readWants reads the head of a fetch request, up to its flush. Files of a size that is not
// below the last result are to be left out.
func readWants(lines *pktline.Scanner) (wants []plumbing.Hash, caps *capability.List, below int64, err error) {
	caps, below = capability.NewList(), noFilter
	for lines.Scan() {
		line := bytes.TrimSuffix(lines.Bytes(), []byte("\n"))
		if len(line) == 0 {
			return wants, caps, below, nil
		}
		if limit, ok := bytes.CutPrefix(line, []byte("filter blob:limit=")); ok && len(wants) > 0 {
			if below, err = strconv.ParseInt(string(limit), 10, 64); err != nil {
				return nil, nil, 0, err
			}
			continue
		}
		hash, rest, ok := hashAfter(line, "want ")
		if !ok {
			return nil, nil, 0, fmt.Errorf("%.60q where a wanted object was expected", line)
		}
		if len(wants) == 0 {
			if err := caps.Decode(rest); err != nil {
				return nil, nil, 0, err
			}
		}
		wants = append(wants, hash)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, 0, err
	}
	if len(wants) > 0 {
		return nil, nil, 0, io.ErrUnexpectedEOF
	}
	return nil, caps, below, nil
}

// hashAfter splits "word <hash>rest".
func hashAfter(line []byte, word string) (hash plumbing.Hash, rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(line, []byte(word))
	if !ok || len(rest) < 40 || !plumbing.IsHash(string(rest[:40])) {
		return plumbing.ZeroHash, nil, false
	}
	return plumbing.NewHash(string(rest[:40])), rest[40:], true
}

// negotiateCommon finds out what client and server have in common. done is false
// when the client will come back with another request.
func (r *Repo) negotiateCommon(lines *pktline.Scanner, enc *pktline.Encoder, detailed, stateless bool) (common []plumbing.Hash, done bool, err error) {
	for lines.Scan() {
		line := bytes.TrimSuffix(lines.Bytes(), []byte("\n"))
		switch have, _, isHave := hashAfter(line, "have "); {
		case isHave && r.hasObject(have):
			common = append(common, have)
			if detailed {
				err = enc.Encodef("ACK %s common\n", have)
			} else if len(common) == 1 {
				err = enc.Encodef("ACK %s\n", have)
			}
		case isHave:
		case len(line) == 0:
			// Having anything in common is enough to stop asking: what the
			// pack then holds too much, the client throws away.
			if detailed && len(common) > 0 {
				err = enc.Encodef("ACK %s ready\n", common[len(common)-1])
			}
			if err == nil && (detailed || len(common) == 0) {
				err = enc.EncodeString("NAK\n")
			}
			if err == nil && stateless {
				return nil, false, nil
			}
		case string(line) == "done":
			if len(common) == 0 {
				err = enc.EncodeString("NAK\n")
			} else if detailed {
				err = enc.Encodef("ACK %s\n", common[len(common)-1])
			}
			return common, err == nil, err
		default:
			err = &badRequestError{fmt.Errorf("%.60q in a negotiation", line)}
		}
		if err != nil {
			return nil, false, err
		}
	}
	if err := lines.Err(); err != nil {
		return nil, false, &badRequestError{err}
	}
	return nil, false, nil
}

// hasObject reports whether the repository has an object.
func (r *Repo) hasObject(h plumbing.Hash) bool {
	return r.Edit(func(s storage.Storer) error { return s.HasEncodedObject(h) }) == nil
}

// packObjects makes a pack of what wants need and haves do not have, but for large files.
func (r *Repo) packObjects(wants, haves []plumbing.Hash, below int64) ([]byte, error) {
	var pack bytes.Buffer
	err := r.Edit(func(s storage.Storer) error {
		have, err := revlist.Objects(s, haves, nil)
		if err != nil {
			return err
		}
		objects, err := revlist.Objects(s, wants, have)
		if err != nil {
			return err
		}
		objects = slices.DeleteFunc(objects, func(h plumbing.Hash) bool {
			obj, err := s.EncodedObject(plumbing.BlobObject, h)
			return err == nil && obj.Size() >= below
		})
		// revlist returns them in the order of a map.
		slices.SortFunc(objects, func(a, b plumbing.Hash) int { return cmp.Compare(a.String(), b.String()) })
		_, err = packfile.NewEncoder(&pack, s, false).Encode(objects, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pack objects of %s: %w", r.name, err)
	}
	return pack.Bytes(), nil
}

// receivePack answers a client that pushes: commands to move references, then
// a pack with what they need; it reports what became of each.
func (r *Repo) receivePack(in io.Reader, out io.Writer) error {
	buf := bufio.NewReader(in)
	first, err := buf.Peek(4)
	switch {
	case errors.Is(err, io.EOF) && len(first) == 0, string(first) == "0000":
		return nil // looked at the references and left, or asks whether it may send more
	case err != nil:
		return &badRequestError{err}
	}
	req := packp.NewReferenceUpdateRequest()
	if err := req.Decode(buf); err != nil {
		return &badRequestError{err}
	}
	pack, err := readPack(buf, req.Commands)
	if err != nil {
		return &badRequestError{err}
	}
	report := packp.NewReportStatus()
	if err := r.Edit(func(s storage.Storer) error { return r.applyCommands(s, req.Commands, pack, report) }); err != nil {
		return fmt.Errorf("update references of %s: %w", r.name, err)
	}
	if !req.Capabilities.Supports(capability.ReportStatus) {
		return nil
	}
	if !req.Capabilities.Supports(capability.Sideband64k) {
		return report.Encode(out)
	}
	if err := report.Encode(sideband.NewMuxer(sideband.Sideband64k, out)); err != nil {
		return err
	}
	return pktline.NewEncoder(out).Flush()
}

// readPack reads the pack that follows commands, unless they only delete.
func readPack(in io.Reader, commands []*packp.Command) ([]byte, error) {
	if !slices.ContainsFunc(commands, func(c *packp.Command) bool { return c.New != plumbing.ZeroHash }) {
		return nil, nil
	}
	// A client on a stream keeps it open for the report: read no further than
	// the pack goes.
	var pack bytes.Buffer
	scan := packfile.NewScanner(io.TeeReader(in, &pack))
	_, objects, err := scan.Header()
	if err != nil {
		return nil, err
	}
	if objects == 0 {
		return nil, nil // everything is here already
	}
	for range objects {
		if _, err := scan.NextObjectHeader(); err != nil {
			return nil, err
		}
		if _, _, err := scan.NextObject(io.Discard); err != nil {
			return nil, err
		}
	}
	if _, err := scan.Checksum(); err != nil {
		return nil, err
	}
	return pack.Bytes(), nil
}

// applyCommands stores a pack and carries out the commands that still hold.
func (r *Repo) applyCommands(s storage.Storer, commands []*packp.Command, pack []byte, report *packp.ReportStatus) error {
	report.UnpackStatus = "ok"
	if len(pack) > 0 {
		if err := packfile.UpdateObjectStorage(s, bytes.NewReader(pack)); err != nil {
			report.UnpackStatus = err.Error()
		}
	}
	for _, c := range commands {
		status := "ok"
		switch why, err := r.moveReference(s, c, report.UnpackStatus == "ok"); {
		case err != nil:
			return err
		case why != "":
			status = why
		}
		report.CommandStatuses = append(report.CommandStatuses, &packp.CommandStatus{ReferenceName: c.Name, Status: status})
	}
	return nil
}

// moveReference moves one reference. why is git's text for a refusal.
func (r *Repo) moveReference(s storage.Storer, c *packp.Command, unpacked bool) (why string, err error) {
	now := plumbing.ZeroHash
	switch ref, err := s.Reference(c.Name); {
	case err == nil:
		now = ref.Hash()
	case !errors.Is(err, plumbing.ErrReferenceNotFound):
		return "", err
	}
	switch {
	case !unpacked:
		return "unpacker error", nil
	case c.Name.Validate() != nil || c.Name == plumbing.HEAD:
		return "funny refname", nil
	case now != c.Old:
		return "failed to update ref", nil // somebody was faster
	case c.New == plumbing.ZeroHash:
		if err := s.RemoveReference(c.Name); err != nil {
			return "", err
		}
		r.world.Report("git", "%s: %s was deleted", r.name, c.Name.Short())
		return "", nil
	}
	if _, err := revlist.Objects(s, []plumbing.Hash{c.New}, nil); err != nil {
		return "missing necessary objects", nil
	}
	if err := s.SetReference(plumbing.NewHashReference(c.Name, c.New)); err != nil {
		return "", err
	}
	r.notifyMoved(c.Name, c.Old, c.New)
	return "", nil
}
