package access

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"time"
)

// WriteKubeconfig writes an administrator's kubeconfig with PEM certificates.
func WriteKubeconfig(cluster, endpoint string, ca, crt, key []byte) []byte {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[2]s
    certificate-authority-data: %[3]s
users:
- name: admin@%[1]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
contexts:
- context:
    cluster: %[1]s
    namespace: default
    user: admin@%[1]s
  name: admin@%[1]s
current-context: admin@%[1]s
`, cluster, endpoint, b64(ca), b64(crt), b64(key))
}

// PackFile makes a tar.gz with one file.
func PackFile(name string, data []byte) ([]byte, error) {
	var buf bytes.Buffer
	zip := gzip.NewWriter(&buf)
	archive := tar.NewWriter(zip)
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o600, ModTime: time.Now()}); err != nil {
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	if _, err := archive.Write(data); err != nil {
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	if err := zip.Close(); err != nil {
		return nil, fmt.Errorf("write %s: %w", name, err)
	}
	return buf.Bytes(), nil
}
