//! git's smart HTTP backend behind FastCGI, with a repository to fetch from and one to push to. The nginx of
//! `web` (TLS) and of `plain` is in front. The same FastCGI server runs their other CGI programs.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result};

use super::{Endpoints, Instance, daemon, daemon::Daemon, tool};

/// Bytes that a clone transfers, about.
const CONTENT_BYTES: u64 = 1 << 20;

/// Creates the two repositories unless they exist, and wraps git-http-backend in FastCGI.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    if !Path::new(&instance.path("projects/sample.git")).exists() {
        make_sample(instance).context("making the sample repository")?;
    }
    let inbox = instance.path("projects/inbox.git");
    git(&["init", "--quiet", "--bare", "--initial-branch=main", &inbox])?;
    git(&["-C", &inbox, "config", "http.receivepack", "true"])?;
    let mut command = Command::new("/usr/sbin/fcgiwrap");
    command.args(["-s", &format!("tcp:127.0.0.1:{}", instance.port)]);
    Ok(Daemon::new(command))
}

/// The commit that a clone must have at its head.
pub(super) fn endpoints(instance: &Instance) -> Result<Endpoints> {
    let commit = git(&["-C", &instance.path("projects/sample.git"), "rev-parse", "HEAD"])?;
    Ok(vec![("GIT_COMMIT", commit.trim().to_owned())])
}

/// The nginx location `/git/` of the service `web` (or `plain`) that serves the repositories.
pub(super) fn nginx_location(web: &Instance) -> Result<String> {
    let projects = web.directory.with_file_name("git").join("projects");
    let (projects, backend) = (projects.display(), cgi_backend(web)?);
    Ok(format!(
        r#"    location ~ ^/git(/.*)$ {{
      client_max_body_size 0;
{backend}      fastcgi_param SCRIPT_FILENAME /usr/lib/git-core/git-http-backend;
      fastcgi_param GIT_PROJECT_ROOT "{projects}";
      fastcgi_param GIT_HTTP_EXPORT_ALL "";
      fastcgi_param PATH_INFO $1;
    }}
"#
    ))
}

/// The nginx lines that run a CGI program for the service at `web`. The caller adds `SCRIPT_FILENAME`.
pub(super) fn cgi_backend(web: &Instance) -> Result<String> {
    let port = daemon::running(&web.directory.with_file_name("git"))?;
    let port = port.context("the service `git` is not running: start it first")?;
    Ok(format!(
        r#"      fastcgi_pass 127.0.0.1:{port};
      fastcgi_param QUERY_STRING $query_string;
      fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param CONTENT_TYPE $content_type;
      fastcgi_param CONTENT_LENGTH $content_length;
"#
    ))
}

fn make_sample(instance: &Instance) -> Result<()> {
    let draft = instance.path("projects/draft.git");
    fs::create_dir_all(&draft)?;
    // Random bytes, so that compression does not shrink the transfer.
    let content = instance.path("content");
    io::copy(&mut File::open("/dev/urandom")?.take(CONTENT_BYTES), &mut File::create(&content)?)?;
    let in_draft = |arguments: &[&str]| git(&[&["-C", &draft], arguments].concat());
    git(&["init", "--quiet", "--bare", "--initial-branch=main", &draft])?;
    let blob = in_draft(&["hash-object", "-w", &content])?;
    in_draft(&["update-index", "--add", "--cacheinfo", &format!("100644,{},content", blob.trim())])?;
    let tree = in_draft(&["write-tree"])?;
    let identity = ["-c", "user.name=Sample", "-c", "user.email=sample@example.com"];
    let commit = in_draft(&[&identity[..], &["commit-tree", "-m", "A sample", tree.trim()]].concat())?;
    in_draft(&["update-ref", "refs/heads/main", commit.trim()])?;
    // Renamed last, so that an interrupted run leaves no incomplete sample.
    Ok(fs::rename(&draft, instance.path("projects/sample.git"))?)
}

fn git(arguments: &[&str]) -> Result<String> {
    tool::run(Command::new("git").args(arguments))
}
