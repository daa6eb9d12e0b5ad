package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// scanTimeout is how long an ssh server may take to show one key.
const scanTimeout = 15 * time.Second

// hostKeyAlgorithms are asked for each by itself: a server shows one key in one
// connection.
var hostKeyAlgorithms = [][]string{
	{ssh.KeyAlgoED25519},
	{ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521},
	{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256},
}

// ScanHostKeys asks an ssh server for its host keys. Nothing proves them: they
// are for a person to compare.
func ScanHostKeys(ctx context.Context, addr string) ([]ssh.PublicKey, error) {
	keys, errs := make([]ssh.PublicKey, len(hostKeyAlgorithms)), make([]error, len(hostKeyAlgorithms))
	var all sync.WaitGroup
	for i, algorithms := range hostKeyAlgorithms {
		all.Go(func() { keys[i], errs[i] = scanHostKey(ctx, addr, algorithms) })
	}
	all.Wait()
	keys = slices.DeleteFunc(keys, func(k ssh.PublicKey) bool { return k == nil })
	if len(keys) == 0 {
		return nil, fmt.Errorf("ask %s for its host keys: %w", addr, errs[0])
	}
	return keys, nil
}

// errScanned ends a connection whose host key was seen.
var errScanned = errors.New("seen")

func scanHostKey(ctx context.Context, addr string, algorithms []string) (ssh.PublicKey, error) {
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	// The library knows no context.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close()
	}()
	var seen ssh.PublicKey
	_, _, _, err = ssh.NewClientConn(conn, addr, &ssh.ClientConfig{
		User: "git", ClientVersion: "SSH-2.0-talos-agent", HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			seen = key
			return errScanned
		},
	})
	if seen != nil {
		return seen, nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return nil, err
}
