// Package accesslog writes the access log of a simulated pveproxy: the format of its
// lines, and the rotation of the file.
//
// Sources: PVE::APIServer::AnyEvent, log_request and open_access_log (pve-http-server
// 6.0.5), and configs/pve.logrotate of pve-manager 9: daily, compressed a day late.
//
// It must not know what a request asks for, or who may send it.
package accesslog
