// Package hosttest is what the tests of a host share: its files, and a time server.
//
// Only tests import it.
package hosttest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"filippo.io/age"
	"golang.org/x/crypto/ssh"
)

// The secrets of the tests' hosts. None of them may be in a problem or in a
// printed setting.
const (
	CanaryToken = "talos-agent@pve!pve1=c4n4ry00-0000-0000-0000-000000000000"
	CanaryGit   = "c4n4ry-git"
	CanaryForge = "c4n4ry-forge"
)

// Files are the files of a host that need not be looked at closely.
func Files(t testing.TB) map[string]string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	host, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0)}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{
		"age.key":       "# a comment\n" + id.String() + "\n",
		"proxmox.token": CanaryToken + "\n",
		"git.token":     CanaryGit + "\n",
		"forge.token":   CanaryForge + "\n",
		"deploy.key":    string(pem.EncodeToMemory(block)),
		"known_hosts":   "example.org " + string(ssh.MarshalAuthorizedKey(host)),
		"ca.pem":        string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})),
		"policy.yaml":   "pool: talos\nvmids: [400-599]\n",
		"short":         "c4n4ry-short\n",
		"hook.url":      "https://hooks.example.org/c4n4ry\n",
		"plain.url":     "http://hooks.example.org/c4n4ry\n",
		"mail.url":      "smtp://me:c4n4ry@mail.example.org/?from=a@example.org&to=b@example.org\n",
		"ntfy.url":      "ntfy://ntfy.example.org/c4n4ry\n",
		"config.yaml":   "",
	}
}

// New writes the files of a host and returns its folder.
func New(t testing.TB, files ...map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, some := range files {
		for name, text := range some {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// Write writes a file with exactly its mode.
func Write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// ServeTime serves the time, which is ahead of ours.
func ServeTime(addr string, ahead time.Duration) (at string, stop func(), err error) {
	conn, err := net.ListenPacket("udp", addr)
	if err != nil {
		return "", nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if n < 48 {
				continue
			}
			// RFC 5905: version 4, a server of stratum 2.
			answer := make([]byte, 48)
			answer[0], answer[1] = 4<<3|4, 2
			now := time.Now().Add(ahead)
			stamp := uint64(now.Unix()+2208988800)<<32 | uint64(now.Nanosecond())<<32/1e9
			for at, v := range map[int]uint64{16: stamp, 24: binary.BigEndian.Uint64(b[40:]), 32: stamp, 40: stamp} {
				binary.BigEndian.PutUint64(answer[at:], v)
			}
			_, _ = conn.WriteTo(answer, from)
		}
	}()
	return conn.LocalAddr().String(), func() { _ = conn.Close(); <-done }, nil
}
