//! Users as they are stored: their names, their credentials, and one file for each in `users.d`.

mod credential;
mod file;
mod name;

pub use credential::{
    Argon2Cost, Credential, CredentialError, HashMemory, PASSWORD_BYTES_MAX, PASSWORD_BYTES_MIN,
    PasswordHash, TokenHash, generate_password, generate_token, random_word,
};
pub(crate) use file::write;
pub use file::{
    Edit, USERS_DIRECTORY, UserFile, UsersLock, create, edited, lock, path_of, quoted, remove, replace,
};
pub use name::{NameError, USER_NAME_BYTES_MAX, UserName};
