package pve

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path"
	"strings"
	"syscall"
	"time"
)

// downloadURL answers POST download-url: the host fetches a file by itself.
func downloadURL(c *call) (any, error) {
	s, file := c.s, c.str("filename")
	st, err := s.checkDestination(c, file)
	if err != nil {
		return nil, err
	}
	name := c.str("content") + "/" + file
	return s.forkTask(c.who, c.node, "download", file, c.fault, func(t *task) error {
		if c.str("compression") != "" && c.str("content") == "import" {
			return perlError("decompression not supported for import")
		}
		return s.downloadFile(t, st, name, c)
	})
}

func (s *Server) downloadFile(t *task, st *storage, name string, c *call) error {
	url, target := c.str("url"), st.file(name)
	s.logLine(t, "downloading %s to %s", url, target)
	s.mu.Lock()
	_, exists := st.volumes[name]
	s.mu.Unlock()
	if exists {
		return perlError("refusing to override existing file '%s'", target)
	}
	if _, err := s.passTime(t, 0); err != nil {
		return err
	}
	s.logLine(t, "--%s--  %s", formatNow(), url)
	temp := fmt.Sprintf("%s.tmp_dwnl.%d", target, t.pid)
	file, err := s.fetchFile(t, url, temp, c.str("checksum-algorithm"))
	if err != nil {
		return err
	}
	if c.str("compression") != "" {
		return perlError("the lab's Proxmox VE does not decompress downloads")
	}
	if want := c.str("checksum"); want != "" {
		if !strings.EqualFold(want, file.sum) {
			s.logLine(t, "calculating checksum...")
			return perlError("checksum mismatch: got '%s' != expect '%s'", file.sum, want)
		}
		s.logLine(t, "calculating checksum...OK, checksum verified")
	}
	file.name = path.Base(name)
	s.keepFile(st, name, file)
	s.logLine(t, "download of '%s' to '%s' finished", url, target)
	return nil
}

func formatNow() string { return time.Now().UTC().Format(time.DateTime) }

// fetchFile gets a file over the world's network, with wget's lines in the log.
func (s *Server) fetchFile(t *task, url, temp, algorithm string) (received, error) {
	req, err := http.NewRequestWithContext(t.ctx, http.MethodGet, url, nil)
	if err != nil {
		return received{}, perlError("download failed: %v", err)
	}
	at := req.URL.Host
	resp, err := s.newClient().Do(req)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return received{}, perlError("download failed: Connecting to %s... failed: Connection refused.", at)
		}
		return received{}, perlError("download failed: %v", err)
	}
	defer resp.Body.Close()
	s.logLine(t, "Connecting to %s... connected.", at)
	s.logLine(t, "HTTP request sent, awaiting response... %s", resp.Status)
	if resp.StatusCode != http.StatusOK {
		s.logLine(t, "%s ERROR %d: %s.", formatNow(), resp.StatusCode, strings.TrimPrefix(resp.Status, fmt.Sprint(resp.StatusCode, " ")))
		return received{}, perlError("download failed: exit code 8")
	}
	s.logLine(t, "Length: %d (%s) [%s]", resp.ContentLength, shortSize(resp.ContentLength), resp.Header.Get("Content-Type"))
	s.logLine(t, "Saving to: '%s'", temp)
	file, err := readAll(resp.Body, algorithm)
	if err != nil {
		return received{}, perlError("download failed: %v", err)
	}
	s.logLine(t, "     0K                                    100%% 1.00G=0s")
	s.logLine(t, "%s (1.00 GB/s) - '%s' saved [%d/%[3]d]", formatNow(), temp, file.bytes)
	return file, nil
}

// newClient is a client that trusts what the lab's own authority signed.
func (s *Server) newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: s.world.Net.DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: s.world.PKI.Pool()},
	}}
}

// shortSize renders a size as wget does.
func shortSize(n int64) string {
	switch {
	case n < 1<<20:
		if n < 10<<10 {
			return fmt.Sprintf("%.1fK", float64(n)/(1<<10))
		}
		return fmt.Sprintf("%.0fK", float64(n)/(1<<10))
	case n < 10<<20:
		return fmt.Sprintf("%.1fM", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.0fM", float64(n)/(1<<20))
}

// queryURL answers GET query-url-metadata.
func queryURL(c *call) (any, error) {
	req, err := http.NewRequestWithContext(c.r.Context(), http.MethodHead, c.str("url"), nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.s.newClient().Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op
		}
		return nil, perlError("invalid server response: '500 Can't connect to %s (%v)'", req.URL.Host, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, perlError("invalid server response: '%s'", resp.Status)
	}
	return row{"filename": path.Base(req.URL.Path), "size": resp.ContentLength, "mimetype": resp.Header.Get("Content-Type")}, nil
}
