package main

import (
	"encoding/binary"
	"net"
	"time"
)

// serveTime serves the time, which is ahead of ours.
func serveTime(addr string, ahead time.Duration) (at string, stop func(), err error) {
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
