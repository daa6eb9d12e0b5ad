// Package forge simulates the API of a forge (GitHub, GitLab or Gitea): which
// commit statuses it took, and the webhooks it sends for pushes. It accepts and
// refuses as the real one does, over the world's network and with the world's
// latencies, faults and certificates.
//
// It must not know the agent, nor the git server: which commits exist and what was
// pushed it is asked and given from outside.
//
// Its calls are those of system "forge" of [world.Call]; the operation is the
// method and the route.
package forge
