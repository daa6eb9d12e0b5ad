// Package gitserver simulates a git server, over https and ssh: repositories, what
// is on their branches, and who may fetch and push. It speaks the real protocol,
// over the world's network and with the world's latencies, faults and
// certificates; tests commit to its repositories without a checkout.
//
// It must not know who follows a repository: not the agent, and not the forge,
// which is connected to it from outside with [Repo.OnPush].
//
// Its calls are those of system "git" of [world.Call]. Operations are "GET
// info/refs SERVICE", "POST SERVICE" and, over ssh, "SSH SERVICE", where SERVICE is
// git-upload-pack for who fetches and git-receive-pack for who pushes.
package gitserver
