// Package serial speaks with the client of a serial port as Proxmox VE's termproxy does.
package serial

import (
	"context"
	"errors"
	"time"

	"github.com/gorilla/websocket"
)

// silence is after how long a silent client is dropped, in its own time.
const silence = 5 * time.Minute

// Serve is the conversation with a client until it leaves, or ctx ends: who it is, which
// accept judges, then what the guest prints. next waits for the i-th line of that, "" for
// none; its error ends the conversation.
func Serve(ctx context.Context, conn *websocket.Conn, accept func(first string) bool, next func(ctx context.Context, i int) (string, error)) error {
	_, first, err := conn.ReadMessage()
	if err != nil {
		return err
	}
	if !accept(string(first)) {
		return errors.New("the ticket is not confirmed")
	}
	served, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer cancel()
		for {
			if conn.SetReadDeadline(time.Now().Add(silence)) != nil {
				return
			}
			if _, _, err := conn.ReadMessage(); err != nil {
				return // whatever it types, the guest does not care
			}
		}
	}()
	defer func() { _ = conn.Close(); <-left }()
	print := func(text string) error { return conn.WriteMessage(websocket.BinaryMessage, []byte(text)) }
	if err := print("OK"); err != nil {
		return err
	}
	if err := print("starting serial terminal on interface serial0 (press Ctrl+O to exit)\r\n"); err != nil {
		return err
	}
	for i := 0; ; i++ {
		line, err := next(served, i)
		if err != nil {
			return nil // the client has left, or the host ends
		}
		if line == "" {
			continue
		}
		if err := print(line + "\r\n"); err != nil {
			return err
		}
	}
}
