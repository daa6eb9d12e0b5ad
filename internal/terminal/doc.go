// Package terminal answers how things look to a person at a terminal, and to a
// program that reads the same as JSON: tables, colours, what the daemon's words
// look like (a status, a forecast, a run, an event), and the screen that follows
// them. It also keeps what others wrote from commanding the terminal.
//
// Widths, tables and whether a terminal has colours are lipgloss's. Ours are:
//
//   - clean.go: lipgloss removes escape sequences or obeys them; we show where
//     one was, since a person should see that somebody tried.
//   - Paint: lipgloss ends a colour with ESC [ m; scripts and tests know the
//     older ESC [ 0 m, which means the same.
//   - frame.go: lipgloss draws no screen in place, and its wrapping knows no
//     hanging indent and breaks commands at hyphens.
//   - NO_COLOR: https://no-color.org wants any value to count, lipgloss only true
//     ones.
//
// It must not know where the words come from: no socket, no daemon, no adapter.
// It knows the nouns of internal/cluster, and decides nothing about them.
package terminal
